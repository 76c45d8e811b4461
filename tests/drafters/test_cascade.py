"""Cascade drafting: the draft model's chain in fewer passes, and the copier's later tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting import Counting, Transient
from decoding import decoded
from enumeration import distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make_drafter
from paceline.drafters.cascade import DEFERRED, AheadSession, CascadeDrafter, CascadeTarget
from paceline.drafters.lookup import LookupState
from paceline.drafters.model import ModelDrafter
from paceline.settings import Drafting
from paceline.speculative.interfaces import Budget, Drafter, RequiredOutputs
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from parrot import LookupCopier
from tongues import speaking

V = 6
FREE = PassCosts.flat(1.0, per_row=0.0)  # every guess is worth its row

prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=20)
budgets = st.builds(
    Budget,
    depth=st.integers(0, 9),
    nodes=st.integers(0, 12),
    width=st.integers(1, 4),
    p_min=st.sampled_from([0.0, 0.3, 0.9]),
    p_split=st.sampled_from([0.01, 0.2]),
)


@dataclass(frozen=True)
class Asked(Budget):
    """A budget that records the drafter's questions, and lets a chain grow to `deep` tokens."""

    deep: int = 99
    questions: list[Any] = field(default_factory=list)

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        self.questions.append((drafter, likely, depth, parent))
        return 0.9 * parent * likely

    def should_extend(
        self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
    ) -> bool:
        self.questions.append(("goes on", likeliest, drafted, depth, reach_probability))
        return super().should_extend(likeliest, drafted, depth, reach_probability)

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        self.questions.append(("deepens", drafted, depth, reach_probability))
        return depth < self.deep


def cascade(
    draft: ToyTarget | None = None, copier: Any = None, cost: PassCosts | None = FREE, **settings: Any
) -> CascadeDrafter:
    draft = draft or ToyTarget(V, seed=1, noise=0.3)
    return CascadeDrafter(draft, V, copier or LookupCopier(1, 3), cost=cost, **settings)


def propose(drafter: Drafter, prompt: Sequence[int], budget: Budget, seed: int = 0) -> DraftTree:
    memory = drafter.open(prompt, seed)
    (tree,) = drafter.propose([(memory, budget)])
    memory.close()
    return tree


def models_part(tree: DraftTree) -> DraftTree:
    return tree.filter([source == "model" for source in tree.source])


def same(a: DraftTree, b: DraftTree) -> bool:
    pairs = zip(a.q or (), b.q or (), strict=True)
    return (a.tokens, a.parents, a.score, a.reach_probability, a.source) == (
        b.tokens, b.parents, b.score, b.reach_probability, b.source
    ) and all(np.array_equal(x, y) for x, y in pairs)  # type: ignore[arg-type]  # chains: none is None  # fmt: skip


# Vertical: the draft model's own chain.


@given(
    prompt=prompts,
    budget=budgets,
    seed=st.integers(0, 30),
    deep=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 0.0, 0.8]),
    row=st.sampled_from([0.0, 0.3, 1.0]),
    short=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_chain_is_what_the_draft_model_alone_would_draft_and_the_budget_is_asked_the_same(
    prompt: list[int], budget: Budget, seed: int, deep: int, temperature: float, row: float, short: bool
) -> None:
    n_ctx = 12 if short else 4096
    room = Asked(budget.depth, budget.nodes, 1, budget.p_min, budget.p_split, deep=deep)
    told = Asked(budget.depth, budget.nodes, budget.width, budget.p_min, budget.p_split, deep=deep)
    alone, helped = (Counting(V, seed=seed, n_ctx=n_ctx) for _ in range(2))
    expected = propose(ModelDrafter(alone, V, temperature=temperature), prompt, room, seed)
    drafter = cascade(helped, cost=PassCosts.flat(1.0, per_row=row), temperature=temperature)
    tree = propose(drafter, prompt, told, seed)
    assert same(models_part(tree), expected)
    assert told.questions[: len(room.questions)] == room.questions
    assert helped.passes <= alone.passes
    assert tree.source == ("model",) * len(expected) + (DEFERRED,) * (len(tree) - len(expected))


def test_a_text_that_repeats_itself_is_drafted_in_few_passes_of_the_draft_model() -> None:
    """The target as its own draft model would take 105 passes without the copier."""
    target, draft = ToyTarget(V, seed=3), Counting(V, seed=3)
    drafter = cascade(draft, LookupCopier(1, 3))
    _, steps = decoded(target, drafter, [1, 2, 3], 120, Budget(7, 7))
    assert sum(step.accepted["model"] for step in steps) == sum(len(step.tree) for step in steps) == 105
    assert draft.passes < 50


def test_what_was_guessed_right_is_not_computed_again() -> None:
    """A step of 4 tokens computes the root and 3 drafted tokens, in one pass if all guesses are right."""
    target, draft = ToyTarget(V, seed=3), Counting(V, seed=3)
    drafter = cascade(draft)
    request = start_request(target, drafter, GenerationRequest(prompt=[1, 2, 3], max_tokens=200))
    policy = FixedPolicy(Budget(4, 4))
    for _ in range(20):
        advance_requests(target, drafter, policy, [request])
    for _ in range(6):
        passes, computed = draft.passes, draft.computed
        advance_requests(target, drafter, policy, [request])
        assert draft.passes - passes == 1
        assert draft.computed - computed == 5  # and the token that was drafted last, but never computed


@given(
    texts=st.lists(prompts, min_size=1, max_size=4),
    depths=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    seed=st.integers(0, 30),
)
@settings(max_examples=100, deadline=None)
def test_requests_of_a_batch_read_ahead_for_themselves(
    texts: list[list[int]], depths: list[int], seed: int
) -> None:
    """A pass for some requests invalidates the rows of the others."""
    drafter = cascade(Transient(V, seed=seed))
    batch = [
        (drafter.open(text, 0), Budget(depth, depth)) for text, depth in zip(texts, depths, strict=False)
    ]
    for tree, text, depth in zip(drafter.propose(batch), texts, depths, strict=False):
        expected = propose(ModelDrafter(ToyTarget(V, seed=seed), V), text, Budget(depth, depth))
        assert same(models_part(tree), expected)


class Guessing(LookupCopier):
    """A copier with constant guesses and scores."""

    def __init__(self, tokens: Sequence[int], score: float = 0.5) -> None:
        super().__init__()
        self.tokens, self.score = tuple(tokens), score

    def follow(self, memory: LookupState, said: Sequence[int], budget: Budget) -> DraftTree:
        guess = self.tokens[: min(budget.depth, budget.nodes)]
        return chain(guess, "guessing", [self.score] * len(guess))


def read(drafter: CascadeDrafter, draft: Counting, prompt: Sequence[int], n: int) -> int:
    """Return the guessed tokens that the first pass of a proposal computes."""
    draft.computed = 0
    memory = drafter.open(prompt, 0)
    drafter.propose([(memory, Asked(n, n, p_min=1.0))])
    return draft.computed - len(prompt)


def test_guesses_are_read_as_far_as_they_are_worth_their_rows() -> None:
    """At a score of 0.5 the guesses save 0.5, 0.25, 0.125... passes."""
    for row, n in ((0.0, 5), (0.1, 3), (0.2, 2), (0.4, 1), (0.5, 0), (0.6, 0)):
        draft = Counting(V, seed=4)
        drafter = cascade(draft, Guessing([1, 2, 3, 4, 5, 0]), PassCosts.flat(1.0, per_row=row))
        assert read(drafter, draft, [1, 2, 3], 6) == n, row


def test_a_copier_that_is_wrong_is_soon_not_read_and_one_that_is_right_comes_back() -> None:
    """Guesses are learned from whether they were computed or not."""
    draft = Counting(V, seed=4)
    likeliest = propose(ModelDrafter(draft, V), [1, 2, 3], Budget(1, 1)).tokens[0]
    copier = Guessing([(likeliest + 1) % V])
    drafter = cascade(draft, copier, PassCosts.flat(1.0, per_row=0.3))
    assert read(drafter, draft, [1, 2, 3], 3) == 1
    for right, expected in ((False, 0), (True, 1)):
        copier.tokens = (likeliest if right else (likeliest + 1) % V,)
        for _ in range(30):
            propose(drafter, [1, 2, 3], Budget(2, 2))
        assert read(drafter, draft, [1, 2, 3], 3) == expected


class Successor(ToyTarget):
    """A target that predicts token + 1 with probability exp(s) / (exp(s) + n - 1)."""

    def __init__(self, n_vocab: int = V, *, s: float = 9.0, n_ctx: int = 4096) -> None:
        super().__init__(n_vocab, width=n_vocab, n_ctx=n_ctx)
        self._s = s

    def after(self, state: Any, token: int) -> Any:
        return np.eye(self.vocab.size)[token]

    def logits(self, state: Any) -> Any:
        return self._s * np.roll(state, 1)


def test_tokens_that_the_draft_model_does_not_have_are_not_read_but_may_follow() -> None:
    """The target's vocabulary may be larger by padding."""
    drafter = CascadeDrafter(Successor(V - 1), V, Guessing([1, V - 1, 0]), cost=FREE)
    tree = propose(drafter, [0], Asked(5, 5, deep=2))
    assert tree.tokens == (1, 2, 1, V - 1, 0)
    assert tree.source == ("model", "model", DEFERRED, DEFERRED, DEFERRED)


# Horizontal: what the copier adds.

TEXT = [4, 1, 1, 0, 3]  # after which the draft model says 4, 5, 0, 1, ...


def test_where_a_pass_is_not_worth_it_the_copier_drafts_the_later_tokens() -> None:
    budget = Asked(4, 4, deep=1)
    tree = propose(cascade(Successor()), TEXT, budget)
    assert tree.tokens == (4, 1, 1, 0)
    assert tree.parents == (ROOT, 0, 1, 2)
    assert tree.source == ("model", DEFERRED, DEFERRED, DEFERRED)
    assert tree.score[1:] == (1 / 2,) * 3
    assert tree.reach_probability[3] == pytest.approx(tree.reach_probability[0] * (0.9 / 2) ** 3)
    assert [asked[2] for asked in budget.questions if asked[0] == DEFERRED] == [2, 3, 4]
    assert tree.called == ("model", DEFERRED)


def test_where_the_draft_model_is_not_sure_enough_the_copier_may_be() -> None:
    for p_min, tokens in ((0.4, (5, 4, 1)), (0.6, ())):
        tree = propose(cascade(Successor(s=0.5)), [3, 5, 4, 1, 3], Budget(3, 3, p_min=p_min))
        assert tree.tokens == tokens
        assert set(tree.source) <= {DEFERRED}
        assert tree.called == ("model", DEFERRED)


def test_a_sampled_chain_is_left_alone() -> None:
    """A policy could not leave the copier's tokens out."""
    tree = propose(cascade(Successor(), temperature=0.1), TEXT, Asked(4, 4, deep=1))
    assert (tree.tokens, tree.called) == ((4,), ("model",))
    assert tree.q is not None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("deep", [1, 99])
def test_the_distribution_of_sampled_text_is_unchanged(temperature: float, deep: int) -> None:
    target, sampling = ToyTarget(3, seed=2), Sampling(temperature=0.8)
    draft = ToyTarget(3, seed=2, noise=0.5)
    drafter = CascadeDrafter(draft, 3, LookupCopier(1, 2), temperature=temperature, cost=FREE)
    prompt, budget = [0, 1, 0, 2, 0], Asked(3, 3, p_min=0.4, deep=deep)
    drafted = drafted_distribution(target, drafter, prompt, budget, sampling, 4)
    assert distance(drafted, plain_distribution(target, prompt, sampling, 4)) < 1e-12


# CascadeTarget as a target.


def ahead(
    draft: ToyTarget, copier: Any, text: Sequence[int], depth: int
) -> tuple[CascadeTarget, AheadSession]:
    target = CascadeTarget(draft, copier, FREE)
    session = target.open()
    session.begin_chain(copier.open(text, 0), depth)
    session.extend(text)
    return target, session


@given(
    text=prompts,
    chains=st.lists(st.lists(st.integers(0, V - 1), max_size=6), min_size=1, max_size=6),
    guess=st.lists(st.integers(0, V - 1), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_any_chains_in_any_order_are_answered_as_the_draft_model_does(
    text: list[int], chains: list[list[int]], guess: list[int]
) -> None:
    draft = ToyTarget(V, seed=7)
    target, session = ahead(Transient(V, seed=7), Guessing(guess), text, 8)
    for said in chains:
        (out,) = target.forward([(session, chain(said, "draft"))], RequiredOutputs())
        plain = draft.open()
        plain.extend([*text, *said])
        expected = draft.forward([(plain, EMPTY)], RequiredOutputs())[0]
        assert np.array_equal(out.logits(len(said)), expected.logits(0))
        assert out.argmax(len(said)) == expected.argmax(0)
        assert out.features.top_k is None


def test_a_draft_of_another_vocabulary_is_read_by_tokens() -> None:
    """SLEM has no chain of token ids to guess, so "auto" takes TLI."""
    target, theirs = speaking(ToyTarget(V), "012345"), speaking(ToyTarget(5, seed=2), "30x51")
    theirs.vocab = replace(theirs.vocab, kind="another")
    for toy in (target, theirs):
        toy.text = SimpleNamespace(encode_continuation=lambda _: [])
    drafting = Drafting(drafters=("suffix", "cascade"), cross_vocab="auto")
    drafter, chosen = make_drafter(drafting, target, theirs)
    assert chosen.cross_vocab == "tli"
    assert all(0 <= token < V for token in propose(drafter, [1, 2, 3], Budget(4, 4)).tokens)
