"""Token Recycling, case by case; then in the loop."""

from __future__ import annotations

from itertools import product
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enumeration import distance, drafted_distribution, plain_distribution
from paceline.core.decode import decode, start
from paceline.core.policy import Fixed
from paceline.core.ports import Budget, Drafter, Features, Learner, Target
from paceline.core.record import Step, Times
from paceline.core.sampling import Sampling
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.recycle import RATES, RecycleDrafter
from paceline.engines.llama import LlamaTarget
from paceline.engines.toy import ToyTarget

V = 60
FOUR = Budget(depth=4, nodes=4)
ALONE = RATES[3]


def step(
    *tokens: int, tree: DraftTree = EMPTY, path: tuple[int, ...] = (), rows: list[list[int]] | None = None
) -> tuple[Step, Features]:
    """What the loop tells a memory. rows: the likeliest tokens of the root's row, then of every node's."""
    happened = Step(tokens, ("target",) * len(tokens), path, {}, {}, None, Times(), tree)
    return happened, Features(None if rows is None else np.array(rows))


def eight(*first: int) -> list[int]:
    """A row that begins so, and goes on with tokens that nothing else here has."""
    return [*first, *range(50, 58)][:8]


def drafter_with(table: dict[int, list[int]]) -> RecycleDrafter:
    """One that has seen these rows."""
    drafter = RecycleDrafter(V)
    for token, row in table.items():
        drafter.open([token], 0).observe(*step(0, rows=[row]))
    return drafter


def proposal(drafter: RecycleDrafter, prompt: list[int], budget: Budget = FOUR) -> DraftTree:
    return drafter.propose([(drafter.open(prompt, 0), budget)])[0]


def test_nothing_is_known_at_the_start() -> None:
    assert proposal(RecycleDrafter(V), [1]) is EMPTY


def test_a_chain_follows_the_first_of_every_row() -> None:
    drafter = drafter_with({1: eight(2, 9), 2: eight(3), 3: eight(1)})
    tree = proposal(drafter, [1])
    assert tree.tokens == (2, 3, 1, 2)
    assert tree.parents == (ROOT, 0, 1, 2)
    assert tree.score == (ALONE[0],) * 4
    assert tree.source == ("recycle",) * 4
    assert tree.q is None


def test_every_node_leaves_its_row_accepted_or_not() -> None:
    drafter = RecycleDrafter(V)
    memory = drafter.open([1], 0)
    tree = DraftTree((2, 3, 4), (ROOT, ROOT, 1), (0.5,) * 3, ("other",) * 3)
    rows = [eight(3), eight(20), eight(30), eight(40)]
    memory.observe(*step(3, 30, tree=tree, path=(1,), rows=rows))
    for token, row in zip((1, 2, 3, 4), rows, strict=True):
        assert drafter.line(token) == row
    assert drafter.line(30) == []


def test_a_tree_takes_the_likeliest_path_next() -> None:
    """0.45, then 0.45 squared; then the root's second child with 0.1, before 0.45 cubed."""
    rows = {1: eight(2, 9), 2: eight(3, 10), 3: eight(4, 11), 4: eight(5, 12), 9: eight(13)}
    tree = proposal(drafter_with(rows), [1], Budget(depth=9, nodes=4, width=9))
    assert tree.tokens == (2, 3, 9, 4)
    assert tree.parents == (ROOT, 0, ROOT, 1)
    assert tree.score == (ALONE[0], ALONE[0], ALONE[1], ALONE[0])


@given(
    table=st.fixed_dictionaries({token: st.permutations(range(8)) for token in range(8)}),
    depth=st.integers(1, 3),
    nodes=st.integers(1, 30),
)
@settings(max_examples=30, deadline=None)
def test_no_tree_of_its_size_would_be_accepted_further(
    table: dict[int, list[int]], depth: int, nodes: int
) -> None:
    """Brute force: the survival of every possible path, the largest ones summed."""
    tree = proposal(drafter_with(table), [0], Budget(depth=depth, nodes=nodes, width=nodes))
    places = (places for n in range(1, depth + 1) for places in product(range(8), repeat=n))
    every = sorted((prod(ALONE[place] for place in places_) for places_ in places), reverse=True)
    assert len(tree) == nodes or len(tree) == len(every)
    assert sum(tree.survival) == pytest.approx(sum(every[:nodes]), abs=1e-12)


def test_a_full_width_ends_branching_but_no_path() -> None:
    rows = {token: eight(token + 1, token + 20) for token in range(12)}
    tree = proposal(drafter_with(rows), [0], Budget(depth=8, nodes=10, width=2))
    inner = set(tree.parents) - {ROOT}
    assert len(tree) - len(inner) == 2
    assert max(tree.depths()) == 8


def test_what_followed_in_the_prompt_stands_in_for_an_unknown_row() -> None:
    assert proposal(RecycleDrafter(V), [1, 2, 3, 4, 1]).tokens == (2, 3, 4, 1)


def test_what_followed_most_recently_in_the_text_comes_first() -> None:
    drafter = drafter_with({1: eight(2, 3)})
    memory = drafter.open([1, 3, 7], 0)
    assert memory.candidates(1)[0][:3] == [3, 2, 50]
    memory.observe(*step(1, 9))
    assert memory.candidates(1)[0][:3] == [9, 2, 3]
    assert len(memory.candidates(1)[0]) == 9


@pytest.mark.parametrize(("prompt", "case"), [([1, 2, 5], 0), ([1, 3, 5], 1), ([1, 9, 5], 2), ([5], 3)])
def test_the_score_says_how_text_and_table_agree(prompt: list[int], case: int) -> None:
    drafter = drafter_with({1: eight(2, 3)})
    tree = proposal(drafter, [*prompt, 1], Budget(depth=1, nodes=3, width=3))
    assert tree.score == RATES[case][:3]


def followed(drafter: RecycleDrafter, times: int, truth: int) -> None:
    """In so many requests the drafter had a draft after 1, and `truth` followed."""
    tree = DraftTree((0,), (ROOT,), (0.5,), ("recycle",))
    for _ in range(times):
        drafter.open([1], 0).observe(*step(truth, tree=tree))


def test_scores_become_the_rates_at_which_places_are_right() -> None:
    drafter = drafter_with({1: eight(2, 3)})
    followed(drafter, 400, 3)
    tree = proposal(drafter, [1], Budget(depth=1, nodes=2, width=2))
    assert dict(zip(tree.tokens, tree.score, strict=True))[3] > 0.9
    assert dict(zip(tree.tokens, tree.score, strict=True))[2] < 0.05


def test_what_another_drafter_was_right_with_does_not_count() -> None:
    drafter = drafter_with({1: eight(2, 3)})
    before = proposal(drafter, [1], FOUR).score
    tree = DraftTree((3,), (ROOT,), (0.5,), ("lookup",))
    for _ in range(50):
        drafter.open([1], 0).observe(*step(3, tree=tree, path=(0,)))
    assert proposal(drafter, [1], FOUR).score == before


def test_requests_share_what_was_learned_and_forget_drops_it() -> None:
    drafter = RecycleDrafter(V)
    assert isinstance(drafter, Learner)
    drafter.open([1], 0).observe(*step(2, rows=[eight(2)]))
    followed(drafter, 100, 2)
    assert proposal(drafter, [1]).tokens == (2,)
    assert proposal(drafter, [1]).score > (ALONE[0],)
    drafter.forget()
    assert proposal(drafter, [1]) is EMPTY
    drafter.open([1], 0).observe(*step(2, rows=[eight(2)]))
    assert proposal(drafter, [1]).score == (ALONE[0],)


def test_a_past_output_fills_only_lines_that_are_not_known() -> None:
    drafter = drafter_with({1: eight(2)})
    drafter.learn([1, 7, 8, 9, 8, 10])
    assert drafter.line(1)[0] == 2
    assert drafter.line(7) == [8]
    assert drafter.line(8) == [10]
    drafter.learn([])
    drafter.learn([3])
    assert drafter.line(3) == []


def test_a_step_without_rows_moves_the_text_on() -> None:
    drafter = drafter_with({1: eight(2), 9: eight(10)})
    memory = drafter.open([1], 0)
    memory.observe(*step(9))
    assert drafter.propose([(memory, FOUR)])[0].tokens == (10,)


def texts(
    target: Target, drafter: Drafter, prompts: list[list[int]], budget: Budget, n: int
) -> list[list[int]]:
    """All requests at once, then each again with what the first time has taught."""
    out: list[list[int]] = []
    for batch in (prompts, *([prompt] for prompt in prompts)):
        requests = [start(target, drafter, prompt, max_tokens=n) for prompt in batch]
        said: dict[int, list[int]] = {id(request): [] for request in requests}
        for request, happened in decode(target, drafter, Fixed(budget), requests):
            said[id(request)] += happened.tokens
        out += said.values()
        for request in requests:
            request.close()
    return out


@given(
    prompts=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=3),
    seed=st.integers(0, 20),
    depth=st.integers(1, 6),
    nodes=st.integers(1, 20),
    width=st.integers(1, 8),
    composed=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_output_is_that_of_plain_decoding(
    prompts: list[list[int]], seed: int, depth: int, nodes: int, width: int, composed: bool
) -> None:
    target = ToyTarget(6, seed=seed)
    drafter: Drafter = RecycleDrafter(6)
    if composed:
        drafter = ComposedDrafter([LookupDrafter(2, 3), drafter])
    budget = Budget(depth, nodes, width)
    assert texts(target, drafter, prompts, budget, 25) == texts(target, NoDrafter(), prompts, budget, 25)


def test_sampled_output_has_exactly_the_target_s_distribution() -> None:
    target, sampling, prompt = ToyTarget(4, seed=3), Sampling(temperature=0.9), [1, 2, 1]
    drafted = drafted_distribution(
        target, RecycleDrafter(4), prompt, Budget(depth=2, nodes=4, width=2), sampling, 4
    )
    assert distance(drafted, plain_distribution(target, prompt, sampling, 4)) < 1e-12


def test_it_saves_steps_from_the_first_request_on() -> None:
    target, drafter = ToyTarget(6, seed=1), RecycleDrafter(6)
    request = start(target, drafter, [1, 2], max_tokens=60)
    assert len(list(decode(target, drafter, Fixed(Budget(6, 24, 8)), [request]))) < 30


def test_with_llama_cpp_the_output_is_that_of_plain_decoding(unrounded: Path) -> None:
    target = LlamaTarget(unrounded, n_ctx=256)
    prompts = [target.text.encode("def read(path):\n    with open(path)")]
    try:
        plain = texts(target, NoDrafter(), prompts, Budget(0, 0), 48)
        assert texts(target, RecycleDrafter(target.vocab.size), prompts, Budget(5, 16, 8), 48) == plain
    finally:
        target.close()
