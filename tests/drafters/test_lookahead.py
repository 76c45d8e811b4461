"""Lookahead decoding: the window, the n-grams, and both in the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automaton import Automaton
from enumeration import distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookahead import LookaheadDrafter, LookaheadState
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.grammar_pruning import prune_tree
from paceline.speculative.interfaces import Budget, Drafter, Features
from paceline.speculative.loop import ActiveRequest, decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import ROOT, DraftTree, chain

V = 1000
AMPLE = Budget(depth=20, nodes=200, width=40)


def follows(token: int) -> int:
    """Return the prediction of a target that counts."""
    return (token + 1) % V


def pass_over(memory: LookaheadState, root: int, budget: Budget = AMPLE) -> tuple[DraftTree, tuple[int, ...]]:
    """Run one step of a target that counts; return the draft and the emitted tokens."""
    tree = memory.propose(budget)
    top = np.array([[follows(token)] for token in (root, *tree.tokens)])
    path: list[int] = []
    emitted = [follows(root)]
    while (child := tree.child(path[-1] if path else ROOT, emitted[-1])) is not None:
        path.append(child)
        emitted.append(follows(emitted[-1]))
    step = Step(tuple(emitted), ("",) * len(emitted), tuple(path), {}, {}, None, StepTimes(), tree)
    memory.update(step, Features(top))
    return tree, step.tokens


def window_of(tree: DraftTree) -> DraftTree:
    return tree.filter([node in tree.probe for node in range(len(tree))])


def columns(tree: DraftTree) -> list[tuple[int, ...]]:
    """Return the probes' paths from the root to each leaf."""
    inner = set(tree.parents)
    return [tuple(tree.path_tokens(node)) for node in sorted(tree.probe) if node not in inner]


def drafted(tree: DraftTree) -> set[tuple[int, ...]]:
    """Return the paths from the root to each leaf that may be accepted."""
    nodes = set(range(len(tree))) - tree.probe
    return {tuple(tree.path_tokens(node)) for node in nodes if not tree.children(node)}


def leaves(tree: DraftTree) -> int:
    return len(tree) - len(set(tree.parents) - {ROOT})


def test_the_whole_window_is_the_paper_s_mask() -> None:
    """A column hangs below the oldest guesses before it; its depth is its distance from the root."""
    memory = LookaheadDrafter(3, 4, 2).open([5, 6], 0)
    tokens: tuple[int, ...] = (6,)
    for _ in range(3):
        tree, tokens = pass_over(memory, tokens[-1])
    window = window_of(tree)
    assert len(window) == 3 * (4 - 1) - 1
    assert leaves(window) == 3
    #  root: 0 -> 1          2: 3 -> 4          5: 6 -> 7
    assert window.parents == (ROOT, 0, ROOT, 2, 3, 2, 5, 6)
    assert [len(path) for path in columns(window)] == [2, 3, 4]


def test_the_window_moves_one_place_and_ends_in_what_its_rows_said() -> None:
    memory = LookaheadDrafter(4, 4, 2).open([5, 6], 0)
    root = 6
    for _ in range(3):
        root = pass_over(memory, root)[1][-1]
    before, tokens = pass_over(memory, root)
    after, _ = pass_over(memory, tokens[-1])
    for old, new in zip(columns(before)[1:], columns(after)[1:], strict=True):
        assert new[-2:] == (old[-1], follows(old[-1]))
    # What stood second in every column is now the chain below the root.
    assert [path[-3] for path in columns(after)[1:]] == [path[-2] for path in columns(before)[1:]]


def test_a_column_becomes_an_ngram_of_the_target_s_making() -> None:
    """The text never had 11 after 10, but the window did."""
    memory = LookaheadDrafter(5, 4, 3).open([10, 0], 0)
    for root in range(10):
        assert pass_over(memory, root)[1] == (root + 1,)
    tree, tokens = pass_over(memory, 10)
    assert drafted(tree) == {(11, 12, 13), (0, 1, 2)}  # the second as in the prompt
    assert tokens == (11, 12, 13, 14)


def test_ngrams_of_the_text_are_drafted_too_and_share_their_beginnings() -> None:
    tree = LookaheadDrafter(0, 4, 5).open([1, 2, 3, 4, 1, 2, 3, 5, 1, 9, 9, 9, 1], 0).propose(AMPLE)
    assert tree.tokens == (9, 9, 9, 2, 3, 5, 4)
    assert tree.parents == (ROOT, 0, 1, ROOT, 3, 4, 4)
    assert tree.probe == frozenset()


def test_of_ngrams_that_begin_alike_the_most_recent_are_kept() -> None:
    text = [1, 2, 1, 3, 1, 4, 1, 2, 1]
    assert drafted(LookaheadDrafter(0, 2, 2).open(text, 0).propose(AMPLE)) == {(2,), (4,)}
    assert LookaheadDrafter(0, 2, 3).open(text, 0).propose(AMPLE).tokens == (2, 4, 3)


def test_another_drafter_s_draft_leaves_the_window_as_it_was() -> None:
    memory = LookaheadDrafter(4, 3, 2).open([5, 6], 0)
    root = 6
    for _ in range(3):
        root = pass_over(memory, root)[1][-1]
    window = window_of(memory.propose(AMPLE))
    other = chain([1, 2], "lookup")
    top = np.array([[follows(token)] for token in (root, 1, 2)])
    memory.update(Step((500,), ("",), (), {}, {}, None, StepTimes(), other), Features(top))
    assert columns(window_of(memory.propose(AMPLE))) == columns(window)


def test_a_grammar_that_prunes_guesses_does_not_stop_the_window() -> None:
    prompt = [0, 2, 2, 3, 0, 1, 0]
    memory = LookaheadDrafter(3, 3, 2).open(prompt, 0)
    tree = memory.propose(AMPLE)
    pruned = prune_tree(tree, Automaton())
    assert tree.probe == pruned.probe
    assert len(pruned) < len(tree)
    top = np.array([[follows(token)] for token in (0, *pruned.tokens)])
    memory.update(Step((1,), ("",), (), {}, {}, None, StepTimes(), pruned), Features(top))
    window = window_of(memory.propose(AMPLE))
    assert leaves(window) == 3  # a second row hangs below the first


@pytest.mark.parametrize("spare", range(1, 9))
def test_with_too_little_room_the_window_shrinks(spare: int) -> None:
    memory = LookaheadDrafter(4, 3, 2).open([6, 1, 2, 5], 0)
    for root in (5, 6):
        assert pass_over(memory, root)[1] == (root + 1,)
    memory.update(Step((6,), ("",), (), {}, {}, None, StepTimes()), Features())
    tree = memory.propose(Budget(depth=spare, nodes=3 * spare, width=spare))
    assert len(tree) <= 3 * spare
    assert max(tree.depths()) <= spare
    assert leaves(tree) <= spare
    assert drafted(tree)
    assert bool(tree.probe) == (spare > 1)


def test_scores_become_the_rates_at_which_guesses_are_right() -> None:
    memory = LookaheadDrafter(0, 2, 2).open([1, 2, 1, 3, 1], 0)
    for _ in range(300):  # 2 and 3 in turns: what came before the last time is right
        tree = memory.propose(AMPLE)
        token = tree.tokens[1]
        memory.update(Step((token,), ("",), (1,), {}, {}, None, StepTimes(), tree), Features())
        memory.update(Step((1,), ("",), (), {}, {}, None, StepTimes()), Features())
    recent, older = memory.propose(AMPLE).score
    assert recent < 0.05
    assert older > 0.9


class Varying(FixedPolicy):
    """A policy that goes through budgets."""

    def __init__(self, budgets: Sequence[Budget]) -> None:
        self._budgets = cycle(budgets)

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> list[Budget]:
        return [next(self._budgets)] * len(requests)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "default": LookaheadDrafter,
    "small": lambda: LookaheadDrafter(3, 3, 2),
    "bigrams": lambda: LookaheadDrafter(4, 2, 2),
    "one column": lambda: LookaheadDrafter(1, 4, 2),
    "no window": lambda: LookaheadDrafter(0, 3, 2),
    "after lookup": lambda: ComposedDrafter([LookupDrafter(2, 3), LookaheadDrafter(3, 3, 2)]),
}
budgets = st.builds(Budget, depth=st.integers(0, 9), nodes=st.integers(0, 40), width=st.integers(1, 12))


@pytest.mark.parametrize("name", DRAFTERS)
@given(
    prompt=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    seed=st.integers(0, 20),
    some=st.lists(budgets, min_size=1, max_size=4),
    n_ctx=st.sampled_from([20, 4096]),
)
@settings(max_examples=25, deadline=None)
def test_output_is_that_of_plain_decoding_whatever_the_budgets(
    name: str, prompt: list[int], seed: int, some: list[Budget], n_ctx: int
) -> None:
    target = ToyTarget(6, seed=seed, n_ctx=n_ctx)
    texts = []
    for drafter in (DRAFTERS[name](), NoDrafter()):
        request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=30))
        steps = [step for _, step in decode(target, drafter, Varying(some), [request])]
        texts.append([token for step in steps for token in step.tokens])
        assert all(not step.tree.probe & set(step.path) for step in steps)
    assert texts[0] == texts[1]


def test_under_a_grammar_too() -> None:
    target, sampling, prompt = ToyTarget(4, seed=3), Sampling(temperature=0.9), [0, 1, 0]
    drafts = drafted_distribution(
        target, LookaheadDrafter(2, 3, 2), prompt, AMPLE, sampling, 4, grammar=Automaton
    )
    assert distance(drafts, plain_distribution(target, prompt, sampling, 4, grammar=Automaton)) < 1e-12


def test_the_window_alone_saves_steps() -> None:
    """The prompt is a single token and has no n-grams."""
    target, steps = ToyTarget(40, seed=5, sharpness=4.0), []
    for drafter in (LookaheadDrafter(8, 3, 4), LookaheadDrafter(0, 3, 4)):
        request = start_request(target, drafter, GenerationRequest(prompt=[7], max_tokens=40))
        steps.append(len(list(decode(target, drafter, FixedPolicy(AMPLE), [request]))))
    assert steps[0] < steps[1]
