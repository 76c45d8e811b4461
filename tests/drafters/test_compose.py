"""Compositions of drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enumeration import distance, drafted_distribution, plain_distribution
from groves import trees
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedDrafter, MergedTree, PortfolioDrafter
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.lookup import LookupDrafter, LookupState
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Budget, LearningDrafter, RequiredOutputs
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

V = 6


def test_each_request_is_drafted_for_by_the_first_that_has_something_to_say() -> None:
    drafter = ComposedDrafter([LookupDrafter(2, 3), ModelDrafter(ToyTarget(V), V)])
    repeated, fresh = drafter.open([1, 2, 5, 1, 2], 0), drafter.open([1, 2, 3], 0)
    first, second = drafter.propose([(repeated, Budget(3, 3)), (fresh, Budget(3, 3))])
    assert set(first.source) == {"lookup"}
    assert set(second.source) == {"model"}
    assert drafter.name == "lookup,model"
    assert (first.called, second.called) == (("lookup",), ("lookup", "model"))


class Saying:
    """A drafter of constant chains, which records what it learns."""

    required_outputs = RequiredOutputs()

    def __init__(self, name: str, n: int) -> None:
        self.name = name
        self.n = n
        self.learned: list[list[int]] = []

    def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> LookupState:
        return LookupState(prompt, 1, 1)

    def propose(self, batch: Sequence[tuple[LookupState, Budget]]) -> list[DraftTree]:
        return [chain([1] * min(self.n, budget.depth), self.name, [0.5] * min(self.n, budget.depth))
                for _, budget in batch]  # fmt: skip

    def learn(self, tokens: Sequence[int]) -> None:
        self.learned.append(list(tokens))

    def forget(self) -> None:
        self.learned.clear()

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("sizes", "least", "depth", "winner", "asked"),
    [
        ((2, 3, 5), 3, 8, "b", "ab"),  # the first that has enough
        ((4, 3, 5), 3, 8, "a", "a"),
        ((1, 2, 0), 3, 8, "b", "abc"),  # none has: the largest
        ((2, 2, 1), 3, 8, "a", "abc"),  # of equals the first
        ((0, 0, 0), 3, 8, None, "abc"),
        ((2, 3, 5), 3, 2, "a", "a"),  # more was not asked for
        ((2, 3, 5), 1, 0, None, ""),  # nothing was
    ],
)
def test_the_first_that_has_enough_drafts(
    sizes: tuple[int, ...], least: int, depth: int, winner: str | None, asked: str
) -> None:
    drafter = ComposedDrafter([Saying(name, n) for name, n in zip("abc", sizes, strict=True)], least)
    (tree,) = drafter.propose([(drafter.open([1], 0), Budget(depth, 8))])
    assert set(tree.source) == ({winner} if winner else set())
    assert tree.called == tuple(asked)


def test_what_is_learned_and_forgotten_reaches_those_that_remember() -> None:
    first, last = Saying("a", 1), Saying("b", 1)
    drafter = ComposedDrafter([first, LookupDrafter(), last])
    assert isinstance(drafter, LearningDrafter)
    drafter.learn([1, 2])
    assert first.learned == last.learned == [[1, 2]]
    drafter.forget()
    assert first.learned == last.learned == []


def test_a_later_drafter_that_cannot_open_leaves_the_earlier_closed() -> None:
    opened: list[LookupState] = []

    class Noting(LookupDrafter):
        def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> LookupState:
            opened.append(super().open(prompt, 0))
            return opened[-1]

    class Full(LookupDrafter):
        def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> LookupState:
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        ComposedDrafter([Noting(), Full()]).open([1, 2], 0)
    assert opened[0].tokens == []


def test_probes_are_no_guesses_but_better_than_nothing() -> None:
    """A window without guesses does not stop the next drafter, and is verified if that has no guess."""
    for last, drafted in (([7, 8, 7], ("lookup",) * 3), ([7, 8], ())):
        drafter = ComposedDrafter([LookaheadDrafter(3, 4, 2), LookupDrafter(1, 1)])
        (tree,) = drafter.propose([(drafter.open(last, 0), Budget(3, 20, 8))])
        assert tree.drafter_names == drafted
        assert bool(tree.probe) == (not drafted)


@pytest.mark.parametrize("first", [True, False])
def test_a_sampled_draft_is_not_chosen_by_its_length(first: bool) -> None:
    """`p_min` makes a draft's length depend on the draws, so a choice by length would bias the output."""
    target, sampling = ToyTarget(3, seed=5, sharpness=2.0), Sampling(temperature=1.0)
    model = ModelDrafter(ToyTarget(3, seed=5, sharpness=2.0), 3, temperature=1.0)
    budget, states = Budget(2, 2, p_min=0.7), [model.open([1, 2], seed) for seed in range(20)]
    assert {len(tree) for tree in model.propose([(state, budget) for state in states])} == {1, 2}
    copy = Saying("copy", 1)
    drafter = ComposedDrafter([model, copy] if first else [copy, model], min_tokens=2)
    drafted = drafted_distribution(target, drafter, [1, 2], budget, sampling, 3)
    assert distance(drafted, plain_distribution(target, [1, 2], sampling, 3)) < 1e-12


def united(*drafts: DraftTree) -> DraftTree:
    union = MergedTree()
    for draft in drafts:
        union.add(draft)
    return union.tree()


def test_where_several_say_the_same_it_is_one_node() -> None:
    tree = united(chain([1, 2, 3], "a", [0.9, 0.8, 0.7]), chain([1, 2, 4], "b", [0.5, 0.85, 0.4]))
    assert (tree.tokens, tree.parents) == ((1, 2, 3, 4), (ROOT, 0, 1, 1))
    assert tree.votes[:2] == ((("a", 0.9), ("b", 0.5)), (("a", 0.8), ("b", 0.85)))
    assert tree.votes[2:] == ((("a", 0.7),), (("b", 0.4),))
    assert tree.score == (0.9, 0.85, 0.7, 0.4)  # the surest
    assert tree.source == ("a", "a", "a", "b")  # the first


def test_a_probe_stays_one_until_somebody_guesses_it_and_votes_for_nothing() -> None:
    probing = replace(chain([1, 2, 3], "a", [0.9, 0.9, 0.9]), probe=frozenset({1, 2}))
    guess = chain([1, 2], "b", [0.5, 0.4])
    for drafts in ([probing, guess], [guess, probing]):
        tree = united(*drafts)
        assert (tree.tokens, tree.probe) == ((1, 2, 3), frozenset({2}))
        assert tree.votes[1] == (("b", 0.4),)
        assert tree.drafter_names.count("b") + tree.drafter_names.count("a") == 2
    assert united(probing, probing).probe == {1, 2}


@given(st.lists(st.tuples(trees(5), st.lists(st.integers(0, 2), min_size=5, max_size=5)), max_size=3))
def test_a_union_holds_every_path_of_every_draft_once_and_nothing_else(
    groves: list[tuple[DraftTree, list[int]]],
) -> None:
    said: dict[tuple[int, ...], list[tuple[str, float]]] = {}
    union = MergedTree()
    assert union.tree() == EMPTY
    for at, (grove, tokens) in enumerate(groves):
        draft = DraftTree(tuple(tokens[: len(grove)]), grove.parents, grove.score, (f"d{at}",) * len(grove))
        for node in range(len(draft)):
            said.setdefault(tuple(draft.path_tokens(node)), []).append((f"d{at}", draft.score[node]))
        union.add(draft)
        tree = union.tree()
        if not tree.votes:  # a single draft stays as it is
            assert not len(draft) or tree is draft
            continue
        assert {tuple(tree.path_tokens(node)): list(tree.votes[node]) for node in range(len(tree))} == said
        assert len(tree) == len(said)
        assert union.tree() is tree  # until something is added


def test_all_are_asked_and_each_is_named() -> None:
    """The merged tree may exceed the budget; the policy chooses from it."""
    drafter = PortfolioDrafter([Saying("a", 2), Saying("b", 3), Saying("c", 0)])
    (tree,) = drafter.propose([(drafter.open([1], 0), Budget(3, 3))])
    assert tree.called == ("a", "b", "c")
    assert (tree.tokens, tree.parents) == ((1, 1, 1), (ROOT, 0, 1))
    assert [len(who) for who in tree.votes] == [2, 2, 1]
    forked = PortfolioDrafter([LookupDrafter(1, 1), Saying("b", 3)])
    (tree,) = forked.propose([(forked.open([4, 5, 4], 0), Budget(2, 2))])
    assert len(tree) == 4
    assert FixedPolicy(Budget(2, 2)).select([], [Budget(2, 2)], [tree])[0].called == ("lookup", "b")


@dataclass(frozen=True)
class Choosy(Budget):
    """Calls only the drafters in `names`, and records the questions."""

    names: str = ""
    heard: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        self.heard.append((drafter, draft().tokens))
        return drafter in self.names


def test_the_budget_says_who_is_called_knowing_what_was_proposed_before() -> None:
    drafter = PortfolioDrafter([Saying("a", 1), Saying("b", 2), Saying("c", 3)])
    some, none = Choosy(3, 3, names="ac"), Choosy(3, 3)
    drafts = drafter.propose([(drafter.open([1], 0), budget) for budget in (some, none, Budget(0, 5))])
    assert [tree.called for tree in drafts] == [("a", "c"), (), ()]
    assert [len(tree) for tree in drafts] == [3, 0, 0]
    assert some.heard == [("a", ()), ("b", (1,)), ("c", (1,))]
    assert none.heard == [("a", ()), ("b", ()), ("c", ())]


def test_a_sampled_draft_stands_alone_and_ends_the_asking() -> None:
    """Neither its use nor the calls after it may depend on what was drawn."""
    sampled = ModelDrafter(ToyTarget(V, seed=3), V, temperature=1.0)
    drafter = PortfolioDrafter([Saying("a", 3), sampled, Saying("b", 3)])
    (tree,) = drafter.propose([(drafter.open([1, 2], 0), Budget(2, 2))])
    assert set(tree.source) == {"model"}
    assert tree.q is not None
    assert tree.votes == ()
    assert tree.called == ("a", "model")
    greedy = PortfolioDrafter([Saying("a", 3), ModelDrafter(ToyTarget(V, seed=3), V), Saying("b", 3)])
    (tree,) = greedy.propose([(greedy.open([1, 2], 0), Budget(2, 2))])
    assert tree.called == ("a", "model", "b")


def test_a_draft_model_that_would_not_begin_leaves_the_others_their_word() -> None:
    sampled = ModelDrafter(ToyTarget(V, seed=3, sharpness=0.1), V, temperature=1.0)
    drafter = PortfolioDrafter([Saying("a", 2), sampled, Saying("b", 3)])
    (tree,) = drafter.propose([(drafter.open([1, 2], 0), Budget(3, 3, p_min=0.9))])
    assert tree.q is None
    assert tree.called == ("a", "model", "b")
    assert len(tree) == 3
