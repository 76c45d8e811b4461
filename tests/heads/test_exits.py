"""Heads on the target's first layers: their numbers, sessions and drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import decoded
from head_layouts import Container, load_reference, write_layout
from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make
from paceline.drafters.head import HeadState
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.drafts import kind_of, open_head
from paceline.heads.config import ExitFacts, HeadConfig, TargetFacts, read_shape
from paceline.heads.decoder import KeyValueCache, causal_mask
from paceline.heads.entries import Entries
from paceline.heads.exit_target import ExitTarget, KangarooSession
from paceline.heads.networks import ExitsHead, KangarooHead
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, RequiredOutputs
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from tiny_heads import tiny_drafter, tiny_head, toy

V, WIDTH, TOLERANCE = 6, 8, 1e-4
KINDS = ("exits", "kangaroo")
TREE = DraftTree((1, 2, 3, 4, 2), (ROOT, 0, 0, ROOT, 3), (0.5,) * 5, ("x",) * 5)


def exit_target(kind: str, target: ToyTarget, **settings: Any) -> ExitTarget:
    head = tiny_head(kind, target, **settings)
    assert isinstance(head, ExitTarget)
    return head


def exit_drafter(kind: str, target: ToyTarget) -> ModelDrafter:
    settings: dict[str, Any] = {"exits": (ExitFacts(1.5), ExitFacts(0.7)), "default_exit": 1}
    made: ModelDrafter = tiny_drafter(kind, target, **(settings if kind == "exits" else {}))
    return made


def kangaroo_reference() -> tuple[KangarooHead, dict[str, np.ndarray]]:
    reference = load_reference("kangaroo")
    facts = TargetFacts(hidden=32, vocab=96)
    config = HeadConfig("kangaroo", facts, read_shape(Entries(reference.config)), 96, (2,))
    weights = {**reference.weights, "lm_head.weight": reference.target["lm_head.weight"]}
    return KangarooHead(config, weights), reference.values


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


def test_the_temperature_of_an_exit_changes_its_confidence_and_not_its_choice() -> None:
    plain, cool = (
        exit_target("exits", toy(), exits=(ExitFacts(), ExitFacts(temperature)), default_exit=1)
        for temperature in (1.0, 4.0)
    )
    rows = list[np.ndarray]()
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
    rows = list[np.ndarray]()
    for n in (0, 2, len(TREE)):  # grows
        part = DraftTree(TREE.tokens[:n], TREE.parents[:n], TREE.score[:n], TREE.source[:n])
        out = head.forward([(session, part)], NO_OUTPUTS)[0]
        rows += [out.logits(row) for row in range(len(rows), n + 1)]
    for node in range(-1, len(TREE)):
        expected = text_rows(head, target, [*text, *TREE.path_tokens(node)])[-1]
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
            path = step.tree.path_tokens(step.tree.parents[node])
            assert step.tree.tokens[node] == text_rows(head, target, [*text, *path])[-1].argmax()
            drafted += 1
    assert drafted


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_request_goes_on_with_the_text_of_the_first(kind: str) -> None:
    target = toy(sessions=1)
    drafter = exit_drafter(kind, target)
    outputs = []
    for prompt in ([1, 2, 3, 4, 5, 0] * 4, [1, 2, 3, 4, 5, 0] * 3 + [5, 5, 2]):
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


def test_an_exit_behind_all_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="first 3 layers"):
        exit_target("exits", toy(), layer_ids=(3,))


@pytest.mark.parametrize("container", ["safetensors", "torch"])
def test_a_published_kangaroo_adapter_drafts_for_its_target(container: Container, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from hf_models import model_of
    from paceline.backends.transformers.target import HfTarget

    reference = load_reference("kangaroo")
    folder = write_layout(reference, tmp_path / "adapter", container=container)
    assert kind_of(folder) == "kangaroo head"
    target = HfTarget.around(model_of("llama"), sessions=2)
    head = open_head(folder, target)
    assert isinstance(head, ExitTarget)
    assert head.exit_layer == 2
    drafter = make("kangaroo", DrafterInputs(Drafting(("kangaroo",)), target, head))
    text, steps = decoded(target, drafter, [3, 4, 5], 12, Budget(3, 3))
    assert text == decoded(target, NoDrafter(), [3, 4, 5], 12)[0]
    assert sum(len(step.tree) for step in steps) > 0
    values = reference.values
    rows = head._head.forward(values["features"], range(24), [KeyValueCache()], causal_mask(24, 24))
    assert np.abs(rows - values["hidden"]).max() < TOLERANCE
    head.close()
