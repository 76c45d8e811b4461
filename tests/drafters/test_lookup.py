"""Prompt lookup, by example."""

import pytest

from paceline.drafters.lookup import LookupDrafter
from paceline.speculative.interfaces import Budget

FOUR = Budget(depth=4, nodes=4)


def proposal(prompt: list[int], budget: Budget = FOUR, **bounds: int) -> tuple[int, ...]:
    drafter = LookupDrafter(**bounds)
    return drafter.propose([(drafter.open(prompt, 0), budget)])[0].tokens


def test_the_longest_ngram_wins_over_a_more_recent_shorter_one() -> None:
    assert proposal([1, 2, 3, 40, 41, 42, 43, 9, 3, 50, 51, 1, 2, 3]) == (40, 41, 42, 43)


def test_of_equal_ngrams_the_most_recent_wins() -> None:
    assert proposal([1, 2, 3, 40, 1, 2, 3, 50, 51, 52, 53, 1, 2, 3]) == (50, 51, 52, 53)


def test_a_match_near_the_end_continues_into_its_own_draft() -> None:
    assert proposal([9, 1, 2, 1, 2]) == (1, 2, 1, 2)
    assert proposal([5, 5]) == (5, 5, 5, 5)


@pytest.mark.parametrize(
    ("prompt", "score"), [([3, 9, 3], 1 / 2), ([2, 3, 9, 2, 3], 2 / 3), ([1, 2, 3] * 2, 3 / 4)]
)
def test_longer_matches_are_trusted_more(prompt: list[int], score: float) -> None:
    drafter = LookupDrafter()
    tree = drafter.propose([(drafter.open(prompt, 0), FOUR)])[0]
    assert set(tree.score) == {score}
    assert set(tree.source) == {"lookup"}
    assert tree.q is None
