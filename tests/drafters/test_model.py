"""The draft model: what it drafts, its recorded q, and how few tokens it computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from counting import Counting
from decoding import begin, decoded
from paceline.backends.toy import ToyTarget
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget, Grammar
from paceline.speculative.loop import advance_requests
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Mask, Sampling, probabilities
from paceline.speculative.tree import ROOT, DraftTree
from rows import text_rows

V = 6
PROMPT = [1, 2, 3]


def propose(drafter: ModelDrafter, budget: Budget, prompt: Sequence[int] = PROMPT) -> DraftTree:
    return drafter.propose([(drafter.open(prompt, 0), budget)])[0]


def test_a_greedy_chain_follows_the_argmax_and_scores_it_with_its_probability() -> None:
    toy = ToyTarget(V, seed=4)
    tree = propose(ModelDrafter(toy, V), Budget(3, 3))
    text = list(PROMPT)
    for token, score in zip(tree.tokens, tree.score, strict=True):
        p = probabilities(text_rows(toy, text)[0], Sampling(temperature=1.0), [])
        assert token == p.argmax()
        assert score == pytest.approx(p[token], abs=1e-12)
        text.append(token)
    assert tree.q is None


def test_a_sampled_chain_records_the_whole_distribution_it_was_drawn_from() -> None:
    toy = ToyTarget(V, seed=4)
    tree = propose(ModelDrafter(toy, V, temperature=0.7, top_k=3), Budget(4, 4))
    text = list(PROMPT)
    assert tree.q is not None
    for token, q in zip(tree.tokens, tree.q, strict=True):
        assert q is not None
        assert q == pytest.approx(
            probabilities(text_rows(toy, text)[0], Sampling(temperature=0.7, top_k=3), [])
        )
        assert np.count_nonzero(q) == 3
        text.append(token)


def test_p_min_ends_a_greedy_chain_before_the_first_unlikely_token() -> None:
    full = propose(ModelDrafter(ToyTarget(V, seed=4), V), Budget(6, 6))
    least = sorted(full.score)[1]
    short = propose(ModelDrafter(ToyTarget(V, seed=4), V), Budget(6, 6, p_min=least))
    kept = next((i for i, score in enumerate(full.score) if score < least), 6)
    assert short.tokens == full.tokens[:kept]
    assert kept < 6


def test_a_tree_branches_where_an_alternative_is_likely_enough() -> None:
    toy = ToyTarget(V, seed=4)
    tree = propose(ModelDrafter(toy, V), Budget(3, 12, width=3, p_split=0.1))
    chain_alone = propose(ModelDrafter(toy, V), Budget(3, 3))
    p = probabilities(text_rows(toy, PROMPT)[0], Sampling(temperature=1.0), [])
    expected = [t for t in np.argsort(-p)[:3].tolist() if t == p.argmax() or p[t] >= 0.1]
    assert [tree.tokens[c] for c in tree.children(ROOT)] == expected
    node, path = ROOT, []
    while tree.children(node):
        node = tree.children(node)[0]
        path.append(tree.tokens[node])
    assert tuple(path) == chain_alone.tokens
    assert tree.q is None


@pytest.mark.parametrize(("seed", "fully"), [(3, True), (4, False)])
def test_the_drafts_cache_is_reused_whether_the_draft_was_accepted_or_not(seed: int, fully: bool) -> None:
    """A step computes the new root and three drafted tokens; one more if all four were accepted, as the last
    drafted token is never computed."""
    target, draft = ToyTarget(V, seed=3), Counting(V, seed=seed)
    drafter = ModelDrafter(draft, V)
    request = begin(target, drafter, PROMPT, 100)
    policy = FixedPolicy(Budget(4, 4))
    advance_requests(target, drafter, policy, [request])
    for _ in range(6):
        before, passes = draft.computed, draft.passes
        accepted_all = request.n_tokens % 5 == 0 and fully
        step = advance_requests(target, drafter, policy, [request])[0][1]
        assert draft.passes - passes == 4
        assert draft.computed - before == 4 + (1 if accepted_all else 0)
        assert fully == (step.accepted == {"model": 4})


def test_tokens_the_target_does_not_have_are_never_proposed() -> None:
    toy = ToyTarget(V, seed=4)
    favourite = int(text_rows(toy, PROMPT)[0].argmax())
    assert favourite > 0
    tree = propose(ModelDrafter(toy, favourite), Budget(5, 5))
    assert all(token < favourite for token in tree.tokens)


def test_tokens_the_draft_does_not_have_are_replaced_and_the_output_stays_plain() -> None:
    """The target's last token is padding that the draft model lacks."""
    target, drafter = ToyTarget(V, seed=3), ModelDrafter(ToyTarget(V - 1, seed=3), V)
    sampling = Sampling(logit_bias={V - 1: 3.0})
    plain, _ = decoded(target, NoDrafter(), [V - 1, 1], 30, sampling=sampling)
    assert decoded(target, drafter, [V - 1, 1], 30, Budget(4, 4), sampling=sampling)[0] == plain
    assert V - 1 in plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_fits_the_rows_and_the_branches_that_its_model_takes(temperature: float) -> None:
    """One row of a pass is the root's."""
    toy = ToyTarget(V, seed=4, sharpness=0.5)
    toy.caps = replace(toy.caps, max_batch_tokens=4, max_branches=2)
    drafter = ModelDrafter(toy, V, temperature=temperature)
    assert len(propose(drafter, Budget(9, 9))) == 3
    tree = propose(drafter, Budget(9, 20, width=6, p_split=0.0))
    assert (len(tree), len(tree.children(ROOT))) == (3, 2)


def test_requests_that_do_not_draft_leave_their_rows_to_those_that_do() -> None:
    toy = ToyTarget(V, seed=4)
    toy.caps = replace(toy.caps, max_batch_tokens=8)
    drafter = ModelDrafter(toy, V)
    budgets = [Budget(9, 9), Budget(0, 9), Budget(9, 0), Budget(9, 9)]
    trees = drafter.propose([(drafter.open(PROMPT, i), budget) for i, budget in enumerate(budgets)])
    assert [len(tree) for tree in trees] == [3, 0, 0, 3]


def test_with_nothing_to_compute_there_is_no_pass() -> None:
    """A max_catch_up of 0 prefills nothing and drafts nothing."""
    toy = Counting(V, seed=4)
    drafter = ModelDrafter(toy, V)
    memories = [drafter.open(PROMPT, seed) for seed in range(2)]
    trees = drafter.propose([(memory, Budget(4, 4, max_catch_up=0)) for memory in memories])
    assert ([len(tree) for tree in trees], toy.passes) == ([0, 0], 0)


def test_the_drafts_own_draws_do_not_shift_the_targets() -> None:
    """Drafter and request have different random streams for every seed."""
    for seed in range(5):
        drafter = ModelDrafter(ToyTarget(V), V, temperature=1.0)
        request = begin(ToyTarget(V), drafter, PROMPT, 5, seed=seed)
        even = np.full(1000, 0.001)
        assert request.rng.draw(even) != drafter.open(PROMPT, seed).rng.draw(even)


class Noting(Grammar):
    """A grammar that allows everything and records the paths."""

    def __init__(self) -> None:
        self.paths: list[tuple[int, ...]] = []

    def mask(self, path: Sequence[int]) -> Mask:
        self.paths.append(tuple(path))
        return np.ones(V, dtype=np.bool_)

    def commit(self, tokens: Sequence[int]) -> None: ...


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 3])
def test_the_grammar_is_asked_about_each_path_from_its_beginning(width: int, temperature: float) -> None:
    drafter, grammar = ModelDrafter(ToyTarget(V, seed=4), V, temperature=temperature), Noting()
    tree = propose(drafter, Budget(4, 12, width, p_split=0.1, grammar=grammar))
    paths = [tuple(tree.path_tokens(node)) for node in range(-1, len(tree))]
    assert any(path != path[::-1] for path in grammar.paths)
    assert {tuple(tree.path_tokens(parent)) for parent in tree.parents} <= set(grammar.paths) <= set(paths)


@dataclass(frozen=True)
class Wary(Budget):
    """Halves a drafter's probabilities, and goes no deeper below a reach probability of 0.25."""

    heard: list[tuple[int, int, float]] = field(default_factory=list)

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        assert drafter == "model"
        return parent * likely / 2

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        self.heard.append((drafted, depth, reach_probability))
        return reach_probability >= 0.25


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("width", [1, 3])
def test_what_a_budget_believes_is_a_nodes_survival_and_decides_how_deep_it_goes(
    width: int, temperature: float
) -> None:
    """A node not worth another pass stays as a leaf; without any other there is no pass."""
    draft = Counting(V, seed=4)
    budget = Wary(6, 12, width)
    tree = propose(ModelDrafter(draft, V, temperature=temperature), budget)
    assert len(tree) > 0
    for node, parent in enumerate(tree.parents):
        above = 1.0 if parent == ROOT else tree.reach_probability[parent]
        assert tree.reach_probability[node] == pytest.approx(above * tree.score[node] / 2)
        assert parent == ROOT or tree.reach_probability[parent] >= 0.25
    assert [drafted for drafted, _, _ in budget.heard] == list(range(1, len(tree) + 1))
    assert [depth for _, depth, _ in budget.heard] == tree.depths()
    assert [reach_probability for _, _, reach_probability in budget.heard] == list(tree.reach_probability)
    deepest = max(
        depth for _, depth, reach_probability in [(0, 0, 1.0), *budget.heard] if reach_probability >= 0.25
    )
    assert draft.passes == min(6, 1 + deepest)


def test_whether_a_token_is_drawn_is_decided_by_the_likeliest() -> None:
    """The decision precedes the draw; the drawn token may be unlikely."""
    asked: list[float] = []

    class Asking(Budget):
        def should_extend(
            self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
        ) -> bool:
            asked.append(likeliest)
            return super().should_extend(likeliest, drafted, depth, reach_probability)

    unlikely = 0
    for seed in range(20):
        asked.clear()
        drafter = ModelDrafter(ToyTarget(V, seed=4), V, temperature=1.5)
        (tree,) = drafter.propose([(drafter.open(PROMPT, seed), Asking(3, 3, p_min=0.2))])
        assert tree.q is not None
        assert asked[: len(tree)] == [q.max() for q in tree.q if q is not None]
        unlikely += sum(score < 0.2 for score in tree.score)
    assert unlikely > 0
