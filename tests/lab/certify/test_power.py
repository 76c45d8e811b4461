"""What the sampled check catches: each classic mistake, with less than the default number of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import broken
from paceline.core.ports import Budget
from paceline.core.sampling import probabilities, softmax
from paceline.core.settings import Drafting
from paceline.core.tree import ROOT, DraftTree
from paceline.drafters.model import ModelDrafter
from paceline.engines.toy import ToyTarget
from paceline.lab.certify import frequencies
from paceline.lab.certify.certificate import ALL_SAMPLERS, Plan
from paceline.lab.certify.certificate import contexts as chosen
from paceline.lab.certify.held import HeldTarget, Place, recorded
from paceline.lab.certify.sampled import Sampled, check_sampled

V = 48
CONTEXTS = 1  # of the default eight
TEXT = np.random.default_rng(5).integers(V, size=120).tolist()


class Wrong:
    """A drafter whose drafts are changed on their way."""

    def __init__(self, drafter: ModelDrafter, change: Callable[[DraftTree], DraftTree]) -> None:
        self._drafter, self._change = drafter, change
        self.name, self.wants = drafter.name, drafter.wants

    def open(self, prompt: Sequence[int], seed: int) -> Any:
        return self._drafter.open(prompt, seed)

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [self._change(tree) for tree in self._drafter.propose(batch)]

    def close(self) -> None: ...


def check(
    drafting: Drafting,
    change: Callable[[DraftTree], DraftTree] = lambda tree: tree,
    contexts: int = CONTEXTS,
    seed: int = 0,
) -> Sampled:
    target, draft = ToyTarget(V, seed=2, sharpness=1.0), ToyTarget(V, seed=2, sharpness=1.0, noise=0.3)
    place = Place()
    rows = recorded(target, TEXT, 100)
    held = HeldTarget(target, rows, place)
    theirs = HeldTarget(draft, recorded(draft, TEXT, 100), place)
    drafter = ModelDrafter(
        theirs, V, temperature=drafting.temperature, top_k=drafting.top_k, independent=drafting.independent
    )
    return check_sampled(
        held,
        Wrong(drafter, change),
        place,
        chosen([TEXT], [rows], Plan(contexts=contexts)),
        drafting.budget,
        ALL_SAMPLERS,
        rule=drafting.verify,
        runs=Plan().runs,
        seed=seed,
        tick=lambda: None,
    )


CHAIN = Drafting(("model",), n_draft=2, temperature=1.0, p_min=0.0)
TREE = Drafting(("model",), n_draft=2, width=3, temperature=1.0, p_min=0.0, p_split=0.05)


@pytest.fixture(autouse=True)
def fewer_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequencies, "SIMULATED", 20_000)


@pytest.mark.parametrize(
    "drafting",
    [CHAIN, TREE, replace(TREE, verify="kseq"), replace(CHAIN, temperature=0.0)],
    ids=lambda d: f"{d.verify}, width {d.width}, temperature {d.temperature}",
)
def test_what_is_exact_passes(drafting: Drafting) -> None:
    sampled = check(drafting)
    assert sampled.passed
    assert sampled.accepted > 0


@pytest.mark.parametrize("name", broken.VERIFICATIONS)
def test_a_wrong_verification_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.core.decode.verify", broken.VERIFICATIONS[name])
    assert not check(TREE if "traversal" in name else CHAIN).passed


def test_a_deterministic_draft_rejected_without_zeroing_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.core.decode.verify", broken.judged_by(broken.certainly_not_zeroed))
    assert not check(replace(CHAIN, temperature=0.0)).passed


def requeued(change: Callable[[np.ndarray, int], np.ndarray]) -> Callable[[DraftTree], DraftTree]:
    def wrong(tree: DraftTree) -> DraftTree:
        if tree.q is None:
            return tree
        pairs = zip(tree.q, tree.tokens, strict=True)
        return replace(tree, q=tuple(None if q is None else change(q, x) for q, x in pairs))

    return wrong


def dropped(tree: DraftTree) -> DraftTree:
    """A token goes, with all below it, because its own q is low."""
    kept: list[bool] = []
    for node, parent in enumerate(tree.parents):
        q = None if tree.q is None else tree.q[node]
        likely = q is not None and q[tree.tokens[node]] >= 0.3
        kept.append(likely and (parent == ROOT or kept[parent]))
    return tree.only(kept)


DRAFTS: dict[str, tuple[Drafting, Callable[[DraftTree], DraftTree]]] = {
    "q before its temperature": (CHAIN, requeued(lambda q, x: np.sqrt(q) / np.sqrt(q).sum())),
    "q before its top-k": (CHAIN, requeued(lambda q, x: 0.7 * q + 0.3 / len(q))),
    "a token dropped for its own q": (CHAIN, dropped),
    "an argmax with a softmax q": (
        replace(CHAIN, temperature=0.0),
        lambda tree: replace(
            tree, q=tuple(softmax(np.where(np.arange(V) == x, 1.5, 0.0)) for x in tree.tokens)
        ),
    ),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_wrong_draft_is_caught(name: str) -> None:
    assert not check(*DRAFTS[name]).passed


def test_the_rows_leave_something_to_chance() -> None:
    """Where the samplers leave one token, no mistake could show."""
    target = ToyTarget(V, seed=2, sharpness=1.0)
    rows = recorded(target, TEXT, 100)
    for context in chosen([TEXT], [rows], Plan()):
        assert probabilities(rows[context.row], ALL_SAMPLERS, context.tokens).max() < 0.5
