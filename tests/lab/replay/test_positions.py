"""Drafted, reached and accepted, by how far ahead a token was."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.policy import Fixed
from paceline.core.ports import Budget
from paceline.core.record import Step, Times
from paceline.core.tree import EMPTY, ROOT, DraftTree, chain
from paceline.drafters.lookup import LookupDrafter
from paceline.engines.recorded import RecordedTarget, Recording, numbered
from paceline.lab.replay.lane import play
from paceline.lab.replay.positions import Position, Positions


def counted(*steps: tuple[DraftTree, tuple[int, ...]]) -> list[tuple[int, int, int]]:
    positions = Positions()
    for tree, tokens in steps:
        positions.add(Step(tokens, ("target",) * len(tokens), (), {}, {}, None, Times(), tree))
    return [(at.drafted, at.reached, at.accepted) for at in positions.counts]


def test_a_chain_is_reached_up_to_its_first_rejection() -> None:
    assert counted((chain([1, 2, 3], "a"), (1, 2, 9))) == [(1, 1, 1), (1, 1, 1), (1, 1, 0)]
    assert counted((chain([1, 2, 3], "a"), (9,))) == [(1, 1, 0), (1, 0, 0), (1, 0, 0)]
    assert counted((chain([1, 2], "a"), (1, 2, 9))) == [(1, 1, 1), (1, 1, 1)]


def test_behind_the_end_of_an_answer_nothing_was_judged() -> None:
    assert counted((chain([1, 2, 3], "a"), (1, 2))) == [(1, 1, 1), (1, 1, 1), (1, 0, 0)]


def test_siblings_are_reached_together_and_probes_never() -> None:
    tree = DraftTree((1, 2, 3, 4, 5), (ROOT, ROOT, 1, 1, 0), (0.5,) * 5, ("a",) * 5)
    assert counted((tree, (2, 4, 7))) == [(2, 2, 1), (3, 2, 1)]
    probing = DraftTree((1, 2), (ROOT, 0), (0.5,) * 2, ("a",) * 2, probe=frozenset({0, 1}))
    assert counted((probing, (1, 2))) == [(0, 0, 0), (0, 0, 0)]


def test_steps_add_up_and_those_without_a_draft_count_for_nothing() -> None:
    assert counted((EMPTY, (1,)), (chain([1], "a"), (1, 2)), (chain([1, 2], "a"), (3,))) == [
        (2, 2, 1), (1, 0, 0),
    ]  # fmt: skip
    assert counted((EMPTY, (1,))) == []


@given(text=st.lists(st.integers(0, 2), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_accepted_at_all_positions_is_accepted_in_all(text: list[int]) -> None:
    recording = Recording((0, 1, 0), tuple(text))
    target = RecordedTarget(numbered(3), [recording])
    positions, drafted, accepted = Positions(), 0, 0
    for step in play(target, LookupDrafter(1, 2), Fixed(Budget(4, 4)), recording):
        positions.add(step)
        drafted += len(step.tree)
        accepted += sum(step.accepted.values())
    assert sum(at.accepted for at in positions.counts) == accepted
    assert sum(at.drafted for at in positions.counts) == drafted
    ahead = [*positions.counts, Position()]
    for near, far in pairwise(ahead):
        assert near.accepted <= near.reached <= near.drafted
        assert far.reached <= near.accepted
