"""A head's session: what it computes depends on the text and its hidden states, not on how both came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import decoded
from paceline.drafters.head import HeadDrafter
from paceline.heads.arrays import array
from paceline.heads.decoder import KeyValueCache, causal_mask
from paceline.heads.networks import BlockHead, EagleHead
from paceline.heads.session import NetworkSession
from paceline.heads.target import HeadTarget
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.tree import EMPTY, DraftTree, chain
from tiny_heads import KINDS, tiny_drafter, tiny_head, toy

V, TOLERANCE = 6, 1e-4
TARGET = toy(V)
MARKOV = {f"block, {kind}": {"markov": kind, "markov_rank": 3} for kind in ("vanilla", "gated", "rnn")}
SETTINGS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in KINDS},
    "eagle3, window": {"windows": (3,)},
    "eagle3, two layers": {"n_layers": 2, "norm_output": True, "norm_before_residual": True},
    "block, windows": {"windows": (3, 0), "causal_windows": True},
    "block, whole windows": {"windows": (2, 4)},
    "block, from the first mask": {"from_root": False},
    **MARKOV,
}
HEADS: dict[str, HeadTarget] = {
    name: tiny_head(name.partition(",")[0], TARGET, **given) for name, given in SETTINGS.items()
}
TREE = DraftTree(tokens=(1, 4, 2, 2, 5, 0), parents=(-1, -1, 0, 1, 2, 3), score=(1.0,) * 6, source=("x",) * 6)


def features_of(head: HeadTarget, tokens: Sequence[int]) -> Any:
    """Return the target's hidden states [n, layers, width] of a text, in the head's order."""
    session, ids = TARGET.open(), head.config.layer_ids
    session.extend([*tokens, 0])
    layers = sorted(set(ids))
    (out,) = TARGET.forward([(session, EMPTY)], RequiredOutputs(layers=tuple(layers)))
    return out.features.hidden[: len(tokens), [layers.index(index) for index in ids]]


def fresh_rows(head: HeadTarget, tokens: Sequence[int], tree: DraftTree, start: int = 0) -> Any:
    """Return the rows of a session that reads a text at once, with hidden states from `start` on."""
    session = head.open()
    session.observe(start, features_of(head, tokens)[start:-1])
    session.extend(tokens)
    return np.array(session.compute(tree)[1])


def require_rows(head: HeadTarget, session: NetworkSession, tree: DraftTree, start: int = 0) -> None:
    assert session.is_ready
    rows = np.array(session.compute(tree)[1])
    assert np.abs(rows - fresh_rows(head, session.tokens, tree, start)).max() < TOLERANCE


texts = st.lists(st.integers(0, V - 1), min_size=2, max_size=12)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(st.integers(0, V - 1), min_size=1, max_size=4)),
        st.tuples(st.just("observe"), st.integers(1, 5)),
        st.tuples(st.just("again"), st.integers(1, 5)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("compute"), st.integers(0, 6)),
        st.tuples(st.just("commit"), st.lists(st.integers(0, V - 1), min_size=1, max_size=3)),
        st.tuples(st.just("rewind"), texts),
    ),
    max_size=25,
)


class Play:
    """A session under operations. known: tokens whose hidden states the session was given, from `start`."""

    def __init__(self, head: HeadTarget, tokens: Sequence[int], start: int) -> None:
        self.head, self.session, self.start = head, head.open(), start
        self.session.extend(tokens)
        self.known = start

    def observe(self, n: int, overlap: int = 0) -> None:
        tokens = self.session.tokens
        begin = max(self.start, self.known - overlap)
        end = min(len(tokens) - 1, self.known + n)
        if end > begin:
            self.session.observe(begin, features_of(self.head, tokens)[begin:end])
            self.known = max(self.known, end)

    def run(self, what: str, given: Any) -> None:
        session = self.session
        if what == "extend":
            session.extend(given)
        elif what in ("observe", "again"):
            self.observe(given, overlap=given if what == "again" else 0)
        elif what == "read":
            known = max(0, min(session.pending_tokens, session._known - session._next))
            session.read(min(given, known))
        elif what == "rewind":
            self.rewind(given)
        else:
            self.observe(len(session.tokens))
            if session.is_ready and what == "compute":
                require_rows(self.head, session, chain([1, 2, 3, 4, 5, 0][:given], "x"), self.start)
                require_rows(self.head, session, TREE, self.start)
            elif session.is_ready:
                session.compute(chain(given, "x"))
                session.commit(range(len(given) - 1), given[-1])

    def rewind(self, tokens: list[int]) -> None:
        """Go on with another text, which may begin like this one."""
        before = self.session.tokens
        tokens = before[: len(tokens)] + tokens[:3]
        n = next((i for i, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1]), None)
        n = min(len(before), len(tokens)) if n is None else n
        n = min(n, len(tokens) - 1)
        self.session.rewind(n)
        self.session.extend(tokens)
        if self.session._known <= self.start:
            self.start = 0  # nothing is left: the hidden states come again from the first token
        self.known = min(n, self.session._known)


@pytest.mark.parametrize("name", HEADS)
@given(tokens=texts, start=st.integers(0, 4), steps=operations)
@settings(max_examples=40, deadline=None)
def test_rows_are_those_of_a_fresh_session_however_the_text_came(
    name: str, tokens: list[int], start: int, steps: list[tuple[str, Any]]
) -> None:
    play = Play(HEADS[name], tokens, min(start, len(tokens) - 2))
    for step in steps:
        play.run(*step)
    play.run("compute", 3)


@pytest.mark.parametrize("name", HEADS)
def test_sibling_branches_do_not_see_each_other(name: str) -> None:
    head, tokens = HEADS[name], [3, 1, 4, 1, 5, 2]
    rows = fresh_rows(head, tokens, TREE)
    for path in ([0, 2, 4], [1, 3, 5]):
        alone = fresh_rows(head, tokens, chain([TREE.tokens[node] for node in path], "x"))
        assert np.abs(rows[[0, *(node + 1 for node in path)]] - alone).max() < TOLERANCE


@pytest.mark.parametrize("name", [name for name in HEADS if name not in ("medusa", "mtp")])
def test_the_context_matters(name: str) -> None:
    head = HEADS[name]
    one, other = (fresh_rows(head, [first, 1, 4, 1, 5], EMPTY) for first in (3, 0))
    late = fresh_rows(head, [3, 1, 4, 1, 5], EMPTY, start=3)
    assert np.abs(one - other).max() > TOLERANCE
    assert np.abs(one - late).max() > TOLERANCE


@pytest.mark.parametrize("name", ["eagle", "eagle3", "block"])
def test_a_gap_keeps_the_context_before_it(name: str) -> None:
    """A target that has the common prefix in its cache does not show the hidden state of its last token."""
    head, tokens, n = HEADS[name], [3, 1, 4, 1, 5, 2, 2, 0], 4
    session = head.open()
    session.observe(0, features_of(head, [3, 1, 4, 1, 0, 0])[:-1])
    session.extend([3, 1, 4, 1, 0, 0])
    session.compute(EMPTY)
    session.rewind(n)
    session.extend(tokens)
    features = features_of(head, tokens)
    session.observe(n, features[n:-1])
    rows = [*range(n - 1), *range(n, len(tokens) - 1)]  # row n - 1 is left out
    assert session.is_ready
    found = np.array(session.compute(EMPTY)[1])
    assert np.abs(found - direct(head, tokens, features, rows)).max() < TOLERANCE
    session.rewind(n)  # and what came before the gap can be used again
    session.extend(tokens)
    session.observe(0, features[:-1])
    kept = session._next - session._first
    assert kept < n
    assert np.isfinite(session.compute(EMPTY)[1]).all()


@pytest.mark.parametrize("name", ["eagle", "eagle3", "block"])
def test_features_that_wait_are_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.heads.session.MAX_WAITING", 2)
    head, tokens = HEADS[name], [3, 1, 4, 1, 5, 2, 2, 0]
    session, features = head.open(), features_of(head, tokens)
    for start, end in ((0, 2), (2, 5), (5, 7)):  # of 5 tokens the last 2 stay
        session.observe(start, features[start:end])
        assert len(session._waiting) <= 4
    session.extend(tokens)
    found = np.array(session.compute(EMPTY)[1])
    assert np.abs(found - direct(head, tokens, features, range(3, 7))).max() < TOLERANCE


def direct(head: HeadTarget, tokens: Sequence[int], features: Any, rows: Sequence[int]) -> Any:
    """Return the root's logits by one pass of the network over chosen rows."""
    network = head._head
    like = np.zeros(0, np.float32)
    given = array(like, features)[list(rows)]
    if isinstance(network, EagleHead):
        embeddings = head.embed([tokens[row + 1] for row in rows])
        caches = [KeyValueCache() for _ in network.layers]
        mask = causal_mask(len(rows), len(rows))
        out = network.forward(embeddings, network.fuse(given), rows, caches, mask)
        return network.logits(out)[-1:]
    assert isinstance(network, BlockHead)
    caches = [KeyValueCache() for _ in network.layers]
    network.extend(caches, network.context(given), rows)
    table = head.embed([tokens[-1], network.config.mask_token])
    x = np.concatenate([table[:1], *[table[1:]] * (network.block_tokens - 1)])
    at = range(len(tokens) - 1, len(tokens) - 1 + len(x))
    return network.logits(network.forward(x, caches, at, [None] * len(caches)))[:1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_session_drafts_as_a_new_one(kind: str) -> None:
    prompts = [[1, 2, 3, 1, 2, 3, 4, 5], [1, 2, 3, 1, 2, 0, 0], [1, 2, 3, 1, 2, 3, 4, 5, 1, 2], [5]]
    one = tiny_drafter(kind, TARGET)
    for prompt in prompts:
        assert drafts(one, prompt) == drafts(tiny_drafter(kind, TARGET), prompt)
    longest = max(one._retained, key=lambda it: len(it[0]))[0]
    resumed = one.resume(longest, None)
    assert isinstance(resumed, NetworkSession)
    assert resumed._known > len(longest) - 6  # it goes on behind the text it had read


def drafts(drafter: HeadDrafter, prompt: list[int]) -> list[tuple[int, ...]]:
    out = [step.tree.tokens for step in decoded(TARGET, drafter, prompt, 12, Budget(3, 6, width=2))[1]]
    assert any(out)
    return out


def test_hidden_states_in_torch_types_are_read() -> None:
    torch = pytest.importorskip("torch")
    head, tokens = HEADS["eagle3"], [3, 1, 4, 1, 5]
    session = head.open()
    session.observe(0, torch.from_numpy(features_of(head, tokens)[:-1]).to(torch.bfloat16))
    session.extend(tokens)
    assert np.abs(session.compute(TREE)[1] - fresh_rows(head, tokens, TREE)).max() < 0.2
