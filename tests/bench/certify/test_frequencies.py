"""Evidence against a distribution, and the distributions that counted outcomes obey, by enumeration of all
draws of target and draft."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from enumeration import Tape, memories, outcomes
from paceline.backends.toy import ToyTarget
from paceline.bench.certify import frequencies
from paceline.bench.certify.frequencies import (
    CLOSENESS,
    IMPOSSIBLE,
    TESTS,
    ContextCounts,
    OutcomeTable,
    evidence,
    p_value,
)
from paceline.bench.certify.held import Context, ContextRow, FixedRowsTarget, SamplingSetup, record_rows
from paceline.bench.certify.sampled import next_step
from paceline.drafters import model
from paceline.drafters.model import ModelDrafter
from paceline.settings import Drafting
from paceline.speculative.interfaces import Budget
from paceline.speculative.loop import start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree
from planted import CHAIN, GREEDY, TREE, edited, replaced, sure_rejection_without_residual

V = 4
TEXT = np.random.default_rng(3).integers(V, size=40).tolist()
SAMPLING = Sampling(temperature=0.9, top_k=3, repeat_penalty=1.2, presence_penalty=-0.5, logit_bias={2: 0.4})
CONTEXTS = [Context(TEXT[:10], 5), Context(TEXT[:25], 20)]


def loop(drafting: Drafting, depth: int) -> SamplingSetup:
    place = ContextRow()
    target, draft = (
        FixedRowsTarget(toy, record_rows(toy, TEXT, 30), place)
        for toy in (ToyTarget(V, sharpness=1.0), ToyTarget(V, sharpness=1.0, noise=0.4))
    )
    drafter = ModelDrafter(draft, V, temperature=drafting.draft_temp)
    budget = Budget(depth, 2 * depth, drafting.width, p_min=0.0, p_split=0.1)
    return SamplingSetup(target, drafter, place, budget, SAMPLING, drafting.verify)


class Expected:
    """An OutcomeTable of probabilities by enumeration. weight: of the run that is counted."""

    weight = 0.0

    def __init__(self, law: np.ndarray, planned: float) -> None:
        self.law, self.found = law, np.zeros(len(law))

    def add(self, outcome: int) -> None:
        self.found[outcome] += Expected.weight

    @property
    def distance(self) -> float:
        """Distance of the normalised outcomes from the stated distribution."""
        if np.any(self.found[self.law <= IMPOSSIBLE]):
            return 1.0
        return float(np.abs(self.found / self.found.sum() - self.law / self.law.sum()).sum())


def farthest(made: SamplingSetup, context: Context, shallow: bool) -> dict[str, float]:
    """Return by test the largest distance of any table."""

    def run(tape: Tape) -> tuple[Step, int]:
        made.place.at = context.row
        asked = GenerationRequest(
            prompt=context.tokens, max_tokens=3, sampling=made.sampling, ignore_eos=True
        )
        request = start_request(made.target, made.drafter, asked, rule=made.rule)
        request.rng = tape
        for memory in memories(request.drafter_state):
            memory.rng = tape
        policy = FixedPolicy(made.budget)
        step = next_step(made, policy, request)
        tokens = [*step.tokens, *(next_step(made, policy, request).tokens if len(step.tokens) == 1 else ())]
        return step, tokens[1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frequencies, "OutcomeTable", Expected)
        counted = ContextCounts(made, context, planned=1e9)
        for Expected.weight, (step, second) in outcomes(run):
            counted.add(step, second, shallow)
    return {test: max((t.distance for t in counted.tables(test)), default=0.0) for test in TESTS}  # type: ignore[attr-defined]


EVERY = [CHAIN, TREE, replace(CHAIN, verify="token"), replace(TREE, verify="recursive")]


@pytest.mark.parametrize("drafting", EVERY, ids=lambda d: f"{d.verify}, width {d.width}")
@pytest.mark.parametrize("context", CONTEXTS, ids=["first", "second"])
def test_steps_of_drafts_cut_to_depth_one_obey_the_law(drafting: Drafting, context: Context) -> None:
    found = farthest(loop(drafting, 1), context, shallow=True)
    assert max(found.values()) < 1e-9


@pytest.mark.parametrize("drafting", [CHAIN, GREEDY], ids=["sampled", "deterministic"])
def test_deeper_and_deterministic_drafts_leave_the_target_its_distribution(drafting: Drafting) -> None:
    found = farthest(loop(drafting, 2), CONTEXTS[0], shallow=False)
    assert max(found.values()) < 1e-9


def test_a_correction_that_was_just_rejected_is_impossible() -> None:
    with sure_rejection_without_residual():
        found = [farthest(loop(CHAIN, 1), context, shallow=True)["first_token"] for context in CONTEXTS]
    assert max(found) == 1.0


def test_a_draft_that_is_another_q_than_it_was_drawn_from_is_seen_before_it_is_verified() -> None:
    made = loop(CHAIN, 1)
    propose = made.drafter.propose

    def flattened(batch: object) -> list[DraftTree]:
        trees = propose(batch)  # type: ignore[arg-type]
        return [replace(tree, q=tuple(np.full(V, 1 / V) for _ in tree.tokens)) for tree in trees]

    with replaced(made.drafter, "propose", flattened):
        assert farthest(made, CONTEXTS[0], shallow=True)["draft"] > 0.05


def test_a_sibling_recorded_with_another_q_is_seen() -> None:
    line = "growth.add(node, token, likely, growth.child_reach(node, likely), q)"
    wrong = edited(model, ModelDrafter._add_sampled, (line, line.replace(", q)", ", full)")))
    with replaced(ModelDrafter, "_add_sampled", wrong):
        found = [farthest(loop(TREE, 1), context, shallow=True)["draft"] for context in CONTEXTS]
    assert max(found) > 0.05


ODDS = np.array([0.5, 0.3, 0.15, 0.05])


def table(p: np.ndarray, n: int = 2000, seed: int = 0) -> OutcomeTable:
    made = OutcomeTable(ODDS, n)
    made.counts[:4] = np.random.default_rng(seed).multinomial(n, p / p.sum())
    return made


def test_outcomes_too_rare_for_the_planned_draws_are_one_and_impossible_ones_apart() -> None:
    made = OutcomeTable(np.array([0.6, 0.38, 0.01, 0.01, 0.0]), planned=100)
    assert made.p == pytest.approx([0.6, 0.38, 0.02, 0.0])
    for outcome in (0, 0, 1, 2, 3):
        made.add(outcome)
    assert made.counts.tolist() == [2, 1, 2, 0]
    assert math.isfinite(made.evidence)
    made.add(4)
    assert made.evidence == math.inf
    assert p_value(made.evidence) == 0.0


def test_the_evidence_is_the_textbook_ratio_of_likelihoods() -> None:
    counts = np.array([3, 1, 0, 0, 0])
    p = np.array([0.5, 0.3, 0.2, 0.0, 0.0])[[0, 1, 2, 4]]
    bets = []
    for c in CLOSENESS:
        alpha, drawn = c * p[:3].copy(), 1.0
        for outcome in (0, 0, 0, 1):  # the predictive probability of each draw, and then it is learned
            drawn *= alpha[outcome] / alpha.sum() / p[outcome]
            alpha[outcome] += 1
        bets.append(drawn)
    assert evidence(counts[[0, 1, 2, 4]], p) == pytest.approx(math.log(np.mean(bets)))


def test_its_mean_is_one_while_the_law_holds() -> None:
    """Sum over every outcome of five draws."""
    p = np.array([0.6, 0.3, 0.1, 0.0])
    total = 0.0
    for a in range(6):
        for b in range(6 - a):
            c = 5 - a - b
            ways = math.factorial(5) / math.factorial(a) / math.factorial(b) / math.factorial(c)
            likely = ways * 0.6**a * 0.3**b * 0.1**c
            total += likely * math.exp(evidence(np.array([a, b, c, 0]), p))
    assert total == pytest.approx(1.0)


def test_looking_after_every_draw_accuses_a_fair_law_no_more_often_than_stated() -> None:
    level, accused = 0.1, 0
    random = np.random.default_rng(1)
    for _ in range(200):
        draws = random.choice(4, size=300, p=ODDS)
        counts = np.zeros((300, 5), np.int64)
        counts[np.arange(300), draws] = 1
        seen = evidence(counts.cumsum(0), np.array([*ODDS, 0.0]))
        accused += bool(p_value(float(seen.max())) <= level)
    assert accused <= 0.1 * 200


def test_small_biases_are_found_by_all_samples_together_that_none_shows_alone() -> None:
    biased = ODDS * np.array([0.9, 1.1, 1.1, 1.1])
    found = [table(biased, seed=seed).evidence for seed in range(8)]
    assert p_value(sum(found)) < 1e-4
    assert min(map(p_value, found)) > p_value(sum(found))
