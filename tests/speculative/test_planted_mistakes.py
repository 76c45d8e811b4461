"""The proofs can fail: classic mistakes visibly change the distribution."""

from __future__ import annotations

import numpy as np
import pytest

import broken
from enumeration import Tape, drafted_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import ROOT, DraftTree, chain
from paceline.speculative.verify import Verdict, verify
from worlds import FIXED, Answer, Draw, World, induced, plant

EXACT, VISIBLE = 1e-12, 1e-3
WORLD = World(4, seed=3, likeness=0.4)
PENALISED = World(4, seed=3, likeness=0.4, sampling=Sampling(temperature=1.0, presence_penalty=2.0))
CHAIN, TREE, SIBLINGS = plant(1, 1), plant(2, 1), plant(2)

# Where a mistake shows: a chain, or siblings; penalties or none.
PLACES = {
    "traversal that forgets what it rejected": (World(3, seed=7, likeness=0.3), TREE),
    "penalties on the committed text only": (PENALISED, CHAIN),
    "penalties that forget the last drafted token": (PENALISED, CHAIN),
}


@pytest.mark.parametrize("name", broken.VERIFICATIONS)
def test_a_wrong_verification_is_seen(name: str) -> None:
    world, shape = PLACES.get(name, (WORLD, CHAIN))
    judge = broken.VERIFICATIONS[name]
    assert induced(world, shape, 2).distance < EXACT
    assert induced(world, shape, 2, judge=judge).distance > VISIBLE


DRAFTS: dict[str, tuple[Draw, Draw, str]] = {
    "q before its temperature": (CHAIN, broken.with_q(CHAIN, broken.softened), "auto"),
    "q before its top-k": (CHAIN, broken.with_q(CHAIN, broken.beheaded), "auto"),
    "an argmax with a softmax q": (CHAIN, broken.argmax_chain, "auto"),
    "a token dropped for its own q": (CHAIN, broken.dropped_when_unlikely(CHAIN, 0.3), "auto"),
    "siblings without replacement, q never renormalised": (
        SIBLINGS,
        broken.with_q(SIBLINGS, broken.never_renormalised),
        "recursive",
    ),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_wrong_draft_is_seen(name: str) -> None:
    right, wrong, rule = DRAFTS[name]
    assert induced(WORLD, right, 2).distance < EXACT
    assert induced(WORLD, wrong, 2, rule).distance > VISIBLE


def test_a_deterministic_draft_rejected_without_zeroing_it_is_seen() -> None:
    fixed = plant(1, 1, kind=FIXED)
    assert induced(WORLD, fixed, 2).distance < EXACT
    judge = broken.judged_by(broken.certainly_not_zeroed)
    assert induced(WORLD, fixed, 2, judge=judge).distance > VISIBLE


def test_an_end_of_text_inside_a_draft_that_is_not_cut_there_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    toy, sampling = ToyTarget(3, seed=5, eos=frozenset({1})), Sampling(temperature=1.0)
    drafter = ModelDrafter(ToyTarget(3, seed=5, noise=0.5), 3, temperature=1.0)

    def ends_at_once() -> bool:
        texts = drafted_distribution(toy, drafter, [0, 1, 2], Budget(2, 2), sampling, n=3)
        return all(1 not in text[:-1] for text in texts)

    assert ends_at_once()
    monkeypatch.setattr("paceline.speculative.loop.truncate_at_stop", broken.cut_at_the_end_of_the_step)
    assert not ends_at_once()


class Tied:
    """Two tokens tie in every row."""

    def logits(self, row: int) -> np.ndarray:
        return np.array([1.0, 0.0, 1.0])

    def argmax(self, row: int) -> int:
        return int(self.logits(row).argmax())


def test_ties_broken_the_other_way_are_seen() -> None:
    tree, greedy = chain([0, 2], "x"), Sampling()
    assert verify(tree, Tied(), greedy, [0], Tape([])) == Verdict((0,), 0)  # type: ignore[arg-type]
    judge = broken.judged_by(broken.highest_of_equals)
    assert judge(tree, Tied(), greedy, [0], Tape([])) == Verdict((), 2)


def test_a_residual_without_mass_falls_back_to_p() -> None:
    """p equals q up to rounding; a rejection must not divide by 0."""
    world = World(3, seed=1, likeness=1.0)
    q = world.p(())

    class Unlucky(Tape):
        def accept(self, probability: float) -> bool:
            return False

    for rule in ("token", "block"):
        tree = DraftTree((0, 1), (ROOT, 0), (0.5, 0.5), ("x", "x"), q=(q, world.p((0,))))
        verdict = verify(tree, Answer(world, tree), world.sampling, [], Unlucky([]), rule)
        assert verdict.path == ()
        assert q[verdict.token] > 0
