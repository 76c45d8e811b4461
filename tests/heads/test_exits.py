"""Heads on the target's first layers: their numbers, sessions and drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enumeration import decided_distribution, plain_distribution
from exit_heads import WIDTH, exit_config, exit_drafter, exit_target, exit_weights
from head_layouts import load_reference
from paceline.backends.toy import ToyTarget
from paceline.drafters.head import HeadState
from paceline.drafters.none import NoDrafter
from paceline.heads.config import ExitFacts, HeadConfig, TargetFacts, _shape
from paceline.heads.decoder import KeyValueCache, causal_mask
from paceline.heads.exit_session import KangarooSession
from paceline.heads.exit_target import ExitTarget
from paceline.heads.exits import ExitsHead, KangarooHead
from paceline.heads.files import HeadFiles, read_head
from paceline.heads.writing import write_head
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

V, LAYERS, TOLERANCE = 6, 3, 1e-4
NO_OUTPUTS = RequiredOutputs()
KINDS = ("exits", "kangaroo")
TREE = DraftTree((1, 2, 3, 4, 2), (ROOT, 0, 0, ROOT, 3), (0.5,) * 5, ("x",) * 5)


def toy(**more: int) -> ToyTarget:
    return ToyTarget(V, seed=2, layers=LAYERS, width=WIDTH, **more)


def kangaroo_reference() -> tuple[KangarooHead, dict[str, np.ndarray]]:
    reference = load_reference("kangaroo")
    facts = TargetFacts(hidden=32, vocab=96)
    config = HeadConfig("kangaroo", facts, _shape(reference.config), 96, (2,))
    weights = {**reference.weights, "lm_head.weight": reference.target["lm_head.weight"]}
    return KangarooHead(config, weights), reference.values


def test_kangaroo_agrees_with_its_authors_over_a_text_at_once() -> None:
    head, values = kangaroo_reference()
    n = len(values["features"])
    outputs = head.forward(values["features"], range(n), [KeyValueCache()], causal_mask(n, n))
    assert np.abs(outputs - values["hidden"]).max() < TOLERANCE
    assert np.abs(head.logits(outputs) - values["logits"]).max() < TOLERANCE


class FirstLayers:
    """A session of first layers that have computed everything."""

    pending_tokens = 0

    def extend(self, tokens: list[int]) -> None: ...


@pytest.mark.parametrize("together", [True, False])
def test_kangaroo_agrees_with_its_authors_token_by_token(together: bool) -> None:
    head, values = kangaroo_reference()
    features = values["features"]
    n = len(features)
    session = KangarooSession(head, FirstLayers(), np.zeros(0, np.float32), 64)  # type: ignore[arg-type]
    session.observe(0, features[: n - 3, None])
    session.extend([0] * (n - 2))
    _, rows = session.compute_rows(EMPTY, features[n - 3 : n - 2])
    if together:
        _, rows = session.compute_rows(chain([0, 0], "x"), features[n - 2 :])
    else:
        for k in (1, 2):
            _, rows = session.compute_rows(chain([0] * k, "x"), features[n - 3 + k : n - 2 + k])
    assert np.abs(np.stack(rows) - values["draft_logits"]).max() < TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
def test_torch_computes_what_numpy_does(kind: str) -> None:
    torch = pytest.importorskip("torch")
    config = exit_config(kind, toy(), (1,))
    weights = exit_weights(config)
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    hidden = np.random.default_rng(0).normal(size=(5, WIDTH)).astype(np.float32)
    if kind == "exits":
        ours, theirs = ExitsHead(config, weights), ExitsHead(config, tensors)
        pair = ours.logits(hidden, 0), theirs.logits(torch.from_numpy(hidden), 0).numpy()
    else:
        mask = causal_mask(5, 5)
        first, second = KangarooHead(config, weights), KangarooHead(config, tensors)
        out = second.forward(torch.from_numpy(hidden), range(5), [KeyValueCache()], torch.from_numpy(mask))
        pair = (
            first.logits(first.forward(hidden, range(5), [KeyValueCache()], mask)),
            second.logits(out).numpy(),
        )
    assert np.abs(pair[0] - pair[1]).max() < 1e-5


def test_the_temperature_of_an_exit_changes_its_confidence_and_not_its_choice() -> None:
    plain, cool = (
        exit_target("exits", toy(), (1, 2), exits=(ExitFacts(), ExitFacts(temperature)), default_exit=1)
        for temperature in (1.0, 4.0)
    )
    rows = []
    for head in (plain, cool):
        assert head.exit_layer == 2
        session = head.open()
        session.extend([3, 1, 4])
        rows.append(head.forward([(session, EMPTY)], NO_OUTPUTS)[0].logits(0))
    assert np.allclose(rows[0], 4.0 * rows[1], atol=1e-5)


def text_rows(head: ExitTarget, target: ToyTarget, tokens: list[int]) -> np.ndarray:
    """Return the logits behind every token of a text, computed at once."""
    session = target.open()
    session.extend(tokens)
    layers = (head.exit_layer,)
    hidden = target.forward([(session, EMPTY)], RequiredOutputs(layers=layers))[0].features.hidden[:, 0]
    hidden = hidden.astype(np.float32)
    if isinstance(network := head._head, ExitsHead):
        out: np.ndarray = network.logits(hidden, head.config.default_exit)
        return out
    n = len(tokens)
    outputs = network.forward(hidden, range(n), [KeyValueCache()], causal_mask(n, n))
    rows: np.ndarray = network.logits(outputs)
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_tree_is_that_of_its_path_in_a_text(kind: str) -> None:
    target = toy()
    head, text = exit_target(kind, target), [3, 1, 4, 1, 5]
    session = head.open()
    session.extend(text)
    if isinstance(session, KangarooSession):
        inner = target.open()
        inner.extend(text)
        hidden = target.forward([(inner, EMPTY)], RequiredOutputs(layers=(1,)))[0].features.hidden
        session.observe(0, hidden[:-1])
    rows = []
    for n in (0, 2, len(TREE)):  # grows
        part = DraftTree(TREE.tokens[:n], TREE.parents[:n], TREE.score[:n], TREE.source[:n])
        out = head.forward([(session, part)], NO_OUTPUTS)[0]
        rows += [out.logits(row) for row in range(len(rows), n + 1)]
    for node in range(-1, len(TREE)):
        path, at = list[int](), node
        while at != ROOT:
            path, at = [TREE.tokens[at], *path], TREE.parents[at]
        expected = text_rows(head, target, [*text, *path])[-1]
        assert np.abs(rows[node + 1] - expected).max() < TOLERANCE, node


@given(
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=12),
    chunk=st.sampled_from([2, 1 << 40]),
    width=st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_whole_text_at_every_step(
    kind: str, prompt: list[int], chunk: int, width: int
) -> None:
    """One hidden state that is missing or misplaced, or a stale key, would change a draft."""
    target = toy()
    drafter = exit_drafter(kind, target)
    head = drafter._draft
    assert isinstance(head, ExitTarget)
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=25))
    budget, drafted = Budget(3, 3 * width, width=width), 0
    for _, step in decode(target, drafter, FixedPolicy(budget), [request], chunk=chunk):
        text = list(request.session.tokens)[: len(request.session.tokens) - len(step.tokens)]
        for node in range(len(step.tree)):
            if step.tree.children(step.tree.parents[node])[0] != node:
                continue
            path, at = list[int](), step.tree.parents[node]
            while at != ROOT:
                path, at = [step.tree.tokens[at], *path], step.tree.parents[at]
            assert step.tree.tokens[node] == text_rows(head, target, [*text, *path])[-1].argmax()
            drafted += 1
    assert drafted


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_request_goes_on_with_the_text_of_the_first(kind: str) -> None:
    target = toy(sessions=1)
    drafter = exit_drafter(kind, target)
    outputs = []
    for prompt in ([1, 2, 3, 4, 5, 0, 1], [1, 2, 3, 4, 5, 5, 5, 2]):
        requests = []
        for other in (drafter, NoDrafter()):
            request = start_request(target, other, GenerationRequest(prompt=prompt, max_tokens=20))
            for _ in decode(target, other, FixedPolicy(Budget(3, 3)), [request]):
                pass
            requests.append(list(request.session.tokens))
            if isinstance(state := request.drafter_state, HeadState):
                assert state.is_ready
            request.close()
        outputs.append(requests)
    assert all(first == second for first, second in outputs)


SMALL = ToyTarget(3, seed=4, layers=LAYERS, width=WIDTH)


@pytest.mark.parametrize("chunk", [1, 1 << 40])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution_is_plain_samplings_to_the_last_digit(
    kind: str, temperature: float, chunk: int
) -> None:
    sampling, n, prompts = Sampling(temperature=0.8), 2, [[1, 0], [2, 0, 1]]
    together = decided_distribution(
        SMALL,
        exit_drafter(kind, SMALL, temperature),
        prompts,
        lambda _: FixedPolicy(Budget(2, 2)),
        sampling,
        n,
        chunk=chunk,
    )
    plain = [plain_distribution(SMALL, prompt, sampling, n) for prompt in prompts]
    error = max(abs(p - plain[0][one] * plain[1][two]) for (one, two), p in together.items())
    assert sum(together.values()) == pytest.approx(1.0, abs=1e-12)
    assert error < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_read_as_it_was_written(kind: str, tmp_path: Path) -> None:
    target = toy()
    config = exit_config(kind, target, (1,), exits=(ExitFacts(2.0, 1.5, 1.25),))
    weights = exit_weights(config)
    write_head(tmp_path, config, weights, np.arange(V), np.zeros((16, WIDTH), np.float32), {})
    found = read_head(tmp_path)
    assert replace(found.config, extra={}) == config
    assert found.weights.keys() == weights.keys()


def test_a_damaged_or_foreign_head_is_refused() -> None:
    target = toy()
    config = exit_config("exits", target, (1, 2))
    weights = exit_weights(config)
    for name, wrong in (("exits.1.norm.weight", None), ("exits.0.up.weight", np.zeros((3, 3), np.float32))):
        broken = {**weights, name: wrong}
        if wrong is None:
            del broken[name]
        with pytest.raises(ModelError, match="weights"):
            ExitTarget(HeadFiles(Path("x"), config, broken, None, {}), target)
    with pytest.raises(UsageError, match="first 3 layers"):
        exit_target("exits", target, (LAYERS,))
