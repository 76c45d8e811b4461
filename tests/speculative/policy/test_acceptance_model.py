"""The acceptance model: laws of probabilities, and learning."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from groves import reach_probabilities, trees
from paceline.drafters.compose import MergedTree
from paceline.speculative.policy.acceptance import (
    EMA_WEIGHT,
    MAX_SCORE,
    MIN_SCORE,
    AcceptanceModel,
    Calibrator,
    Recent,
    logit_at,
)
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

SOMEWHERE = [0.02, 0.1, 0.3, 0.5]


def union(*drafts: DraftTree) -> DraftTree:
    one = MergedTree()
    for draft in drafts:
        one.add(draft)
    return one.tree()


def one(name: str, token: int, score: float = 0.5) -> DraftTree:
    return chain([token], name, [score])


@given(trees(chances=SOMEWHERE))
def test_at_first_the_scores_are_believed(tree: DraftTree) -> None:
    """If siblings' scores add up to at most 1."""
    sums: dict[int, float] = {}
    for parent, score in zip(tree.parents, tree.score, strict=True):
        sums[parent] = sums.get(parent, 0.0) + score
    assume(max(sums.values(), default=0.0) <= 1.0)
    assert AcceptanceModel().reach_probabilities({}, tree) == pytest.approx(
        reach_probabilities(tree), rel=1e-9
    )


outcomes = st.lists(
    st.tuples(st.sampled_from("ab"), st.floats(0.0, 1.0), st.integers(1, 9), st.booleans()), max_size=30
)


def versed(past: Sequence[tuple[str, float, int, bool]]) -> AcceptanceModel:
    """Return a model with past guesses (drafter, score, depth, right), each beside another drafter's."""
    belief, recent = AcceptanceModel(), Recent()
    for name, score, depth, right in past:
        other = "b" if name == "a" else "a"
        tree = union(chain([1] * depth, name, [score] * depth), chain([1] * depth, other, [0.3] * depth))
        belief.learn(recent, tree, [1] * (depth - 1) + [int(right)])
    return belief


@given(
    tree=trees(), names=st.lists(st.sampled_from("ab"), min_size=7), past=outcomes, recent=st.floats(-1, 1)
)
def test_whatever_was_learned_survivals_are_chances_of_disjoint_texts(
    tree: DraftTree, names: list[str], past: list[tuple[str, float, int, bool]], recent: float
) -> None:
    """No node, nor all children of one together, are likelier than the parent."""
    said = tuple(((name, score),) for name, score in zip(names, tree.score, strict=False))
    mixed = DraftTree(tree.tokens, tree.parents, tree.score, tuple(names[: len(tree)]), votes=said)
    for drafted in (tree, mixed):
        out = versed(past).reach_probabilities({"a": recent, "grove": recent}, drafted)
        below = {ROOT: 1.0} | dict(enumerate(out))
        assert all(0.0 < s < 1.0 for s in out)
        for parent, chance in below.items():
            children = [out[node] for node in range(len(tree)) if tree.parents[node] == parent]
            assert sum(children) <= chance + 1e-12


@pytest.mark.parametrize("score", [-1.0, 0.0, 1.0, 7.0, float("nan"), float("inf")])
def test_whatever_a_drafter_says_of_itself_it_is_believed_at_most_so_much(score: float) -> None:
    belief = AcceptanceModel()
    for tree in (one("a", 1, score), union(one("a", 1, score), one("b", 2, score))):
        for _ in range(3):
            assert all(
                MIN_SCORE - 1e-9 <= s <= MAX_SCORE + 1e-9
                for s in AcceptanceModel().reach_probabilities({}, tree)
            )
            belief.learn({}, tree, [1])
            assert all(0.0 < s < 1.0 for s in belief.reach_probabilities({}, tree))


def test_every_guess_along_the_text_is_an_outcome_and_no_other() -> None:
    tree = DraftTree((1, 2, 3, 4), (ROOT, 0, ROOT, 2), (0.6,) * 4, ("a", "b", "c", "d"))
    belief = AcceptanceModel()
    belief.learn({}, tree, [1, 5])  # right; where the second was drafted came a 5
    learned = [name for name in "abcd" if belief.of(name).weights != Calibrator().weights]
    assert learned == ["a", "b", "c"]
    belief.learn({}, EMPTY, [9])
    assert belief.of("d").weights == Calibrator().weights


def test_siblings_are_learned_from_at_their_own_depth_and_recent_acceptance() -> None:
    tree = DraftTree((1, 2, 3), (ROOT, 0, 0), (0.9, 0.6, 0.4), ("a",) * 3)
    belief, by_hand = AcceptanceModel(), Calibrator()
    belief.learn({}, tree, [1, 3])
    by_hand.update(logit_at(0.9), 1, 0.0, True)
    by_hand.update(logit_at(0.6), 2, EMA_WEIGHT, False)
    by_hand.update(logit_at(0.4), 2, EMA_WEIGHT, True)
    assert belief.of("a").weights == by_hand.weights


def test_what_was_not_verified_is_learned_from_as_well() -> None:
    """The emitted text shows whether a guess was right."""
    belief = AcceptanceModel()
    for _ in range(30):
        belief.learn({}, chain([1, 2], "a", [0.5, 0.5]), [1])
    first, second = belief.reach_probabilities({}, chain([1, 2], "a", [0.5, 0.5]))
    assert first > 0.75
    assert second / first < first  # of which nothing is known but by its score


def test_each_request_has_a_recent_acceptance_of_its_own() -> None:
    belief = AcceptanceModel()
    lucky, unlucky = Recent(), Recent()
    for _ in range(6):
        belief.learn(lucky, one("a", 1), [1])
        belief.learn(unlucky, one("a", 1), [2])
    assert -1.0 < unlucky["a"] < 0.0 < lucky["a"] < 1.0
    chances = [belief.reach_probabilities(recent, one("a", 1))[0] for recent in (unlucky, Recent(), lucky)]
    assert chances == sorted(chances)
    assert chances[2] - chances[0] > 0.3


AGREE, SOLE, OTHER = union(one("a", 1), one("b", 1)), one("a", 1), union(one("a", 1), one("b", 2))


@pytest.mark.parametrize("seed", range(3))
def test_two_that_are_each_right_at_six_in_ten_and_always_where_they_agree(seed: int) -> None:
    """They agree 4 times in 10; otherwise each is right a third of the time."""
    belief, recent, r = AcceptanceModel(), Recent(), random.Random(seed)
    for _ in range(1000):
        luck = r.random()
        if luck < 0.4:
            belief.learn(recent, AGREE, [1])
        else:
            belief.learn(recent, OTHER, [1 if luck < 0.6 else 2 if luck < 0.8 else 3])
    even = Recent()
    assert belief.reach_probabilities(even, AGREE)[0] >= 0.93
    assert belief.reach_probabilities(even, SOLE)[0] == pytest.approx(0.6, abs=0.15)
    assert belief.reach_probabilities(even, OTHER) == pytest.approx([1 / 3, 1 / 3], abs=0.12)


def test_at_first_two_who_agree_are_believed_more_and_two_who_do_not_less() -> None:
    """The order does not matter, and higher scores strengthen the effect."""
    likely, unlikely = one("a", 1, 0.8), one("b", 1, 0.4)
    alone = AcceptanceModel().reach_probabilities({}, likely)[0]
    for first, second in ((one("b", 1, 0.8), likely), (likely, one("b", 1, 0.8))):
        assert AcceptanceModel().reach_probabilities({}, union(first, second))[0] > alone
    for first, second in ((likely, unlikely), (unlikely, likely)):
        both = AcceptanceModel().reach_probabilities({}, union(first, second))[0]
        assert both < AcceptanceModel().reach_probabilities({}, union(likely, one("b", 1, 0.6)))[0]
    opposed = AcceptanceModel().reach_probabilities({}, union(likely, one("b", 2, 0.4)))
    more = AcceptanceModel().reach_probabilities({}, union(likely, one("b", 2, 0.8)))
    assert alone > opposed[0] > more[0]
    assert opposed[0] > opposed[1]


def test_a_probe_is_never_accepted() -> None:
    tree = DraftTree((1, 2), (ROOT, ROOT), (0.9, 0.8), ("a", "a"), probe=frozenset({0}))
    probe, guess = AcceptanceModel().reach_probabilities({}, tree)
    assert probe == 0.0 < guess
