"""The suffix drafter: by example and against its rules."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.suffix import MAX_MATCHES, SuffixDrafter
from paceline.drafters.vote import MIN_PATH_PROBABILITY, VOTE_SMOOTHING
from paceline.speculative.interfaces import Budget, Features, LearningDrafter
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import ROOT, DraftTree

LENGTHS = (1, 2, 4, 8, 16, 32)
texts = st.lists(st.integers(0, 3), min_size=1, max_size=50)


def emitted(*tokens: int) -> Step:
    return Step(tokens, ("target",) * len(tokens), (), {}, {}, None, StepTimes())


def proposal(drafter: SuffixDrafter, prompt: list[int], budget: Budget) -> DraftTree:
    (tree,) = drafter.propose([(drafter.open(prompt, 0), budget)])
    return tree


# What the rules say, read off whole texts: a place is what follows it, and how far it may be followed.


def found(text: list[int], past: list[int], own: bool, most: int) -> list[tuple[int, list[int]]]:
    """Return match length and continuation of every place; -1 ends a text."""
    out = []
    for end in range(1, len(past)):
        n = 0
        while n < min(64, end, len(text)) and past[end - 1 - n] == text[-1 - n]:
            n += 1
        if n:
            follows = past[end:]
            while own and len(follows) < 64:
                follows = follows + follows
            out.append((end, n, [*follows, -1]))
    out.sort(key=lambda place: (-max(n for n in LENGTHS if n <= place[1]), -place[0]))
    return [(n, follows) for _, n, follows in out[:most]]


def shares(places: list[tuple[int, list[int]]], path: tuple[int, ...]) -> dict[int, float]:
    """Return the scores of all tokens that may follow a path."""
    votes: dict[int, float] = defaultdict(float)
    for rank, (n, follows) in enumerate(places):
        if follows[: len(path)] == list(path) and len(path) < n:
            token = follows[len(path)]
            if token >= 0:
                votes[token] += n**2 / (3 + rank)
    every = sum(votes.values())
    return {token: weight / (every + VOTE_SMOOTHING) for token, weight in votes.items()}


@given(
    past=st.lists(texts, max_size=3),
    text=texts,
    budget=st.builds(
        Budget,
        depth=st.integers(1, 6),
        nodes=st.integers(1, 12),
        width=st.sampled_from([1, 2, 99]),
        p_min=st.sampled_from([0.0, 0.3]),
        p_split=st.sampled_from([0.01, 0.2]),
    ),
)
@settings(max_examples=300, deadline=None)
def test_every_node_is_what_the_places_vote_for(
    past: list[list[int]], text: list[int], budget: Budget
) -> None:
    drafter = SuffixDrafter()
    joined: list[int] = []
    for one in past:
        drafter.learn(one)
        joined += [*([-1] if joined else []), *one]
    places = found(text, text, own=True, most=MAX_MATCHES) + found(text, joined, own=False, most=MAX_MATCHES)
    tree = proposal(drafter, text, budget)
    assert sum(not tree.children(node) for node in range(len(tree))) <= budget.width
    reach_probability = [1.0]
    undrafted = []
    for node in (ROOT, *range(len(tree))):
        path = tuple(tree.path_tokens(node))
        ranked = sorted(shares(places, path).items(), key=lambda vote: -vote[1])
        drafted = {tree.tokens[child]: tree.score[child] for child in tree.children(node)}
        votes = dict(ranked)
        for token, score in drafted.items():
            assert score == pytest.approx(votes[token], abs=1e-9)
            assert score >= (budget.p_min if token == tree.tokens[tree.children(node)[0]] else budget.p_split)
        if drafted:
            assert max(drafted.values()) == pytest.approx(ranked[0][1], abs=1e-9)
        if len(path) < budget.depth:
            for rank, (token, score) in enumerate(ranked[: budget.width]):
                if rank == 0 and score < budget.p_min + 1e-9:
                    break
                if token not in drafted and (rank == 0 or score > budget.p_split + 1e-9):
                    undrafted.append((reach_probability[node + 1] * score, rank))
        reach_probability.extend([0.0] * (len(tree) + 1 - len(reach_probability)))
        for child in tree.children(node):
            reach_probability[child + 1] = reach_probability[node + 1] * tree.score[child]
    assert all(value >= MIN_PATH_PROBABILITY - 1e-9 for value in reach_probability)
    # What was left out is less likely than the least likely that was drafted, or there was no room for it.
    for value, rank in undrafted:
        if value > MIN_PATH_PROBABILITY + 1e-9 and (rank == 0 or budget.width == 99):
            assert len(tree) == budget.nodes
            assert value <= min(reach_probability) + 1e-9


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ([1, 2, 3, 4, 9, 1, 2], (3, 4)),  # two tokens match, two may follow
        ([1, 2, 3, 4, 9, 8, 2], (3,)),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4], (5, 6, 7, 8)),
        ([1, 2, 3], ()),
        ([5], ()),
        ([9, 1, 2, 1, 2], (1, 2)),  # goes on into its own draft
        ([4] * 7, (4,) * 6),
        ([2, 7, 0, 2, 6, 0, 3, 2], (6,)),  # of equals the most recent weighs more,
        ([2, 7, 0, 2, 7, 0, 2, 6, 3, 2], (7,)),  # but two weigh more than one
    ],
)
def test_a_match_drafts_as_many_tokens_as_it_is_long(prompt: list[int], tokens: tuple[int, ...]) -> None:
    assert proposal(SuffixDrafter(), prompt, Budget(8, 8)).tokens == tokens


def test_what_one_request_emitted_helps_the_next() -> None:
    drafter = SuffixDrafter()
    memory = drafter.open([1], 0)
    memory.update(emitted(5, 6, 7, 8, 9), Features())
    assert proposal(drafter, [2, 5, 6], Budget(4, 4)).tokens == ()  # not before it ends
    memory.close()
    memory.close()
    assert list(drafter.history.ring[:6]) == [5, 6, 7, 8, 9, 0]
    assert proposal(drafter, [2, 5, 6], Budget(4, 4)).tokens == (7, 8)
    drafter.forget()
    assert proposal(drafter, [2, 5, 6], Budget(4, 4)).tokens == ()


def test_what_it_is_taught_helps_without_any_request() -> None:
    drafter = SuffixDrafter()
    assert isinstance(drafter, LearningDrafter)
    drafter.learn([5, 6, 7, 8])
    drafter.learn([])
    drafter.learn([1, 2, 3])
    assert proposal(drafter, [5, 6], Budget(4, 4)).tokens == (7, 8)
    assert proposal(drafter, [6, 7, 8], Budget(4, 4)).tokens == ()  # 1 follows in memory, not in any text
    assert proposal(drafter, [8, 1], Budget(4, 4)).tokens == (2,)


def test_the_oldest_is_forgotten_when_there_is_no_room() -> None:
    drafter = SuffixDrafter(max_tokens=1024)
    drafter.learn([5001, 5002, 5003])
    drafter.learn(list(range(1015)))
    assert proposal(drafter, [5001, 5002], Budget(4, 4)).tokens == (5003,)
    drafter.learn(list(range(2000, 2010)))
    assert proposal(drafter, [5001, 5002], Budget(4, 4)).tokens == ()
    assert proposal(drafter, [2000, 2001], Budget(4, 4)).tokens == (2002, 2003)
    assert len(drafter.history) == 1024


@given(
    past=st.lists(texts, max_size=2),
    text=texts,
    said=st.lists(st.integers(0, 3), max_size=12),
    width=st.integers(1, 3),
)
@settings(max_examples=200, deadline=None)
def test_what_would_follow_is_what_follows_once_it_was_said(
    past: list[list[int]], text: list[int], said: list[int], width: int
) -> None:
    """`follow` does not change the state."""
    drafter, budget = SuffixDrafter(), Budget(6, 9, width=width, p_split=0.01)
    for one in past:
        drafter.learn(one)
    memory = drafter.open(text, 0)
    before = drafter.propose([(memory, budget)])
    assert drafter.follow(memory, tuple(said), budget) == proposal(drafter, [*text, *said], budget)
    assert drafter.propose([(memory, budget)]) == before
    memory.update(emitted(1, 2), Features())
    assert drafter.propose([(memory, budget)])[0] == proposal(drafter, [*text, 1, 2], budget)


SAME = """
import sys
if {without}:
    sys.modules["numba"] = None
import random
from paceline.speculative.interfaces import Budget
from paceline.drafters.suffix import SuffixDrafter
draw = random.Random(0)
drafter = SuffixDrafter()
drafter._most = 8
drafter.learn([draw.randrange(4) for _ in range(3000)])
for _ in range(20):
    memory = drafter.open([draw.randrange(4) for _ in range(50)], 0)
    for tree in drafter.propose([(memory, Budget(6, 9, width=2)), (memory, Budget(5, 5))]):
        print(tree.tokens, tree.parents, [round(score, 9) for score in tree.score])
print("numba" in sys.modules and sys.modules["numba"] is not None)
"""


def test_without_numba_it_drafts_the_same() -> None:
    pytest.importorskip("numba")
    lines = [
        subprocess.run(
            [sys.executable, "-c", SAME.format(without=without)], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        for without in (False, True)
    ]
    assert [line[-1] for line in lines] == ["True", "False"]
    assert lines[0][:-1] == lines[1][:-1]
    assert len(set(lines[0])) > 20


def test_importing_the_drafter_imports_no_numba() -> None:
    code = "import sys, paceline.drafters.suffix; print('numba' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
