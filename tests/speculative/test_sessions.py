"""Sessions of draft trees, and sessions and targets around others. tests/contract has their contract."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding import decoded
from paceline.backends.toy import ToyTarget
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, Drafter, Target
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.sessions import DerivedSession, ResumableSession, TreeSession
from paceline.speculative.tree import EMPTY, DraftTree, chain
from sum_model import N_CTX, SumTarget

V = 5
texts = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=8), min_size=1, max_size=6)
CHAIN = chain([4, 5, 6], "test")


class Recorder(TreeSession):
    """A session that records the calls of its methods."""

    def __init__(self) -> None:
        super().__init__(n_ctx=8)
        self.calls: list[object] = []

    def _append(self, tokens: Sequence[int]) -> None:
        self.calls.append(("append", len(self.tokens), *tokens))

    def _compute(self, tree: DraftTree, first: int) -> None:
        self.calls.append(("compute", tree.tokens, first))

    def _rewind(self) -> None:
        self.calls.append("rewind")


def test_hooks_are_called_once_and_in_order() -> None:
    session = Recorder()
    session.extend([1, 2])
    assert session.pending_tokens == 0
    assert [session.compute_tree(tree) for tree in (chain([4], "test"), CHAIN, EMPTY)] == [0, 2, 0]
    assert session.calls == [
        ("append", 0, 1, 2), ("compute", (4,), 0), ("compute", (4, 5, 6), 2), "rewind", ("compute", (), 0)
    ]  # fmt: skip
    session.calls.clear()
    session.extend(())
    session.extend(())  # there is no tree any more
    session.compute_tree(CHAIN)
    session.commit([0], 7)
    session.extend([3])
    assert session.tokens == [1, 2, 4, 7, 3]
    assert session.calls == [
        "rewind",
        ("compute", (4, 5, 6), 0),
        "rewind",
        ("append", 2, 4, 7),
        ("append", 4, 3),
    ]
    session.close()
    assert (session.tokens, session.tree) == ([], None)


def test_a_text_that_goes_on_along_the_tree_commits_its_nodes() -> None:
    session = SumTarget(9).open()
    session.extend([1])
    session.compute_tree(CHAIN)
    session.extend([4, 5, 8])
    assert (session.sums, session.pending_tokens) == ([0, 1, 5, 10], 0)


@pytest.mark.parametrize(("n", "complaint"), [(0, "prompt is empty"), (9, "9 tokens do not fit")])
def test_a_prompt_without_tokens_or_beyond_the_context_changes_nothing(n: int, complaint: str) -> None:
    session = Recorder()
    with pytest.raises(UsageError, match=complaint):
        session.extend([1] * n)
    assert (session.tokens, session.calls) == ([], [])


class Doubled(DerivedSession):
    """A session whose inner one has each token twice."""

    def __init__(self) -> None:
        super().__init__(ResumableSession(SumTarget(9)))
        self.text: list[int] = []

    def _append(self, tokens: Sequence[int]) -> None:
        self.text += [token for token in tokens for _ in range(2)]
        self._reader.sync_to(self.text)


def test_a_derived_session_moves_the_other_one_along() -> None:
    session = Doubled()
    session.extend([1, 2])
    assert session.pending_tokens == 3
    for tree in (session, session.inner):
        tree.compute_tree(CHAIN)
    session.extend(())
    assert session.inner.tree is None
    session.compute_tree(CHAIN)
    session.commit([0], 7)
    assert (session.tokens, session.inner.tokens) == ([1, 2, 4, 7], [1, 1, 2, 2, 4, 4, 7, 7])
    session.close()
    assert session.inner.tokens == []


def text_of(target: Target, drafter: Drafter) -> list[int]:
    return decoded(target, drafter, [1, 2], 30, Budget(4, 4), chunk=1)[0]


def test_a_wrapped_target_decodes_as_the_target_does() -> None:
    inner = ToyTarget(6)
    target = SimulatedTarget(inner, PassCosts.flat(1.0), VirtualClock())
    assert (target.vocab, target.caps, target.origin, target.text) == (
        inner.vocab, inner.caps, inner.origin, inner.text
    )  # fmt: skip
    assert text_of(target, LookupDrafter(1, 2)) == text_of(inner, NoDrafter())
    session = target.open()
    session.extend([1, 2, 3])
    target.forward([(session, 1)], NO_OUTPUTS)
    assert session.pending_tokens == 1
    target.forget()
    target.close()


def test_the_documented_backend_decodes() -> None:
    target = SumTarget(7)
    tokens = text_of(target, LookupDrafter(1, 2))
    assert tokens == text_of(target, NoDrafter())
    assert len(tokens) == 30 < N_CTX


@given(texts=texts)
def test_whatever_the_text_becomes_the_answers_are_that_texts(texts: Sequence[list[int]]) -> None:
    target: Target = ToyTarget(V)
    reader = ResumableSession(target)
    for text in texts:
        reader.sync_to(text)
        assert reader.session.tokens == text
        out = target.forward([(reader.session, chain([1, 2], "x"))], NO_OUTPUTS)[0]
        fresh = target.open()
        fresh.extend(text)
        assert (
            out.logits(0).tolist()
            == target.forward([(fresh, chain([], "x"))], NO_OUTPUTS)[0].logits(0).tolist()
        )
    reader.close()
    assert reader.session.tokens == []


def test_a_list_that_is_appended_to_is_read_on() -> None:
    text, target = [1, 2, 3], ToyTarget(V)
    reader = ResumableSession(target)
    first = reader.session
    for more in ([], [4, 0], [1]):
        text += more
        reader.sync_to(text)
        assert reader.session is first
        assert list(first.tokens) == text
    first.extend([2, 2])  # by somebody else
    reader.sync_to(text)
    assert list(reader.session.tokens) == text
