"""The sampled check: exact loops pass, and every classic mistake is caught. The laws of its counts, by
enumeration of all draws of target and draft."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from enumeration import Tape, memories, outcomes
from paceline.backends.toy import ToyTarget
from paceline.bench.certify import sampled
from paceline.bench.certify.fixed_rows import Context, ContextRow, FixedRowsTarget, SamplingSetup, record_rows
from paceline.bench.certify.sampled import (
    FALSE_ALARM,
    IMPOSSIBLE,
    TESTS,
    ContextCounts,
    SampledCheck,
    check_sampled,
    divergence,
    next_step,
    tail_bound,
)
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.settings import Drafting
from paceline.speculative.interfaces import Budget
from paceline.speculative.loop import start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step
from planted import CHAIN, GREEDY, TREE, V, mistakes, sure_rejection_without_residual, toy_loop

FEW = 4
TEXT = np.random.default_rng(3).integers(FEW, size=40).tolist()
SAMPLING = Sampling(temperature=0.9, top_k=3, repeat_penalty=1.2, presence_penalty=-0.5, logit_bias={2: 0.4})
CONTEXTS = [Context(TEXT[:10], 5), Context(TEXT[:25], 20)]
MISTAKES = mistakes(V)


def small(drafting: Drafting, depth: int) -> SamplingSetup:
    place = ContextRow()
    target, draft = (
        FixedRowsTarget(toy, record_rows(toy, TEXT, 30), place)
        for toy in (ToyTarget(FEW, sharpness=1.0), ToyTarget(FEW, sharpness=1.0, noise=0.4))
    )
    drafter = ModelDrafter(draft, FEW, temperature=drafting.draft_temp)
    budget = Budget(depth, 2 * depth, drafting.width, p_min=0.0, p_split=0.1)
    return SamplingSetup(target, drafter, place, budget, SAMPLING, drafting.verify)


class Weighted(dict[int, float]):
    """Probabilities of outcomes. weight: of the run that is counted."""

    weight = 0.0

    def append(self, outcome: int) -> None:
        self[outcome] = self.get(outcome, 0.0) + Weighted.weight


def farthest(made: SamplingSetup, context: Context, shallow: bool) -> dict[str, float]:
    """Return by test the largest distance of any count's distribution from its law."""

    def run(tape: Tape) -> tuple[Step, int]:
        made.place.at = context.row
        requested = GenerationRequest(
            prompt=context.tokens, max_tokens=3, sampling=made.sampling, ignore_eos=True
        )
        request = start_request(made.target, made.drafter, requested, rule=made.rule)
        request.rng = tape
        for memory in memories(request.drafter_state):
            memory.rng = tape
        policy = FixedPolicy(made.budget)
        step = next_step(made, policy, request)
        tokens = [*step.tokens, *(next_step(made, policy, request).tokens if len(step.tokens) == 1 else ())]
        return step, tokens[1]

    counted, found = ContextCounts(made, context), dict.fromkeys(TESTS, 0.0)
    counted.outcomes = defaultdict(Weighted)  # type: ignore[arg-type]
    for Weighted.weight, (step, second) in outcomes(run):
        counted.add(step, second, shallow)
    for count, weights in counted.outcomes.items():
        law, seen = counted.laws[count], np.zeros(len(counted.laws[count]))
        seen[list(weights)] = list(weights.values())  # type: ignore[attr-defined]
        apart = float(np.abs(seen / seen.sum() - law / law.sum()).sum())
        found[count[0]] = max(found[count[0]], 1.0 if seen[law <= IMPOSSIBLE].any() else apart)
    return found


EVERY = [CHAIN, TREE, replace(CHAIN, verify="token"), replace(TREE, verify="recursive")]


@pytest.mark.parametrize("drafting", EVERY, ids=lambda d: f"{d.verify}, width {d.width}")
@pytest.mark.parametrize("context", CONTEXTS, ids=["first", "second"])
def test_steps_of_drafts_cut_to_one_token_obey_the_law(drafting: Drafting, context: Context) -> None:
    found = farthest(small(drafting, 1), context, shallow=True)
    assert max(found.values()) < 1e-9


@pytest.mark.parametrize("drafting", [CHAIN, GREEDY], ids=["sampled", "deterministic"])
def test_deeper_and_deterministic_drafts_leave_the_target_its_distribution(drafting: Drafting) -> None:
    found = farthest(small(drafting, 2), CONTEXTS[0], shallow=False)
    assert max(found.values()) < 1e-9


def test_a_correction_that_was_just_rejected_is_impossible() -> None:
    with sure_rejection_without_residual():
        found = [farthest(small(CHAIN, 1), context, shallow=True)["first_token"] for context in CONTEXTS]
    assert max(found) == 1.0


def test_an_exact_law_is_refused_no_more_often_than_the_bound_says() -> None:
    """Sum over every outcome of twelve draws; two rare outcomes count as one."""
    law, n, exceeded = np.array([0.6, 0.39, 0.006, 0.004, 0.0]), 12, dict.fromkeys((0.5, 0.1, 0.01), 0.0)
    for a in range(n + 1):
        for b in range(n + 1 - a):
            c = n - a - b
            ways = math.factorial(n) / math.factorial(a) / math.factorial(b) / math.factorial(c)
            bound = tail_bound(*divergence([0] * a + [1] * b + [2, 3] * (c // 2) + [2] * (c % 2), law))
            for level in exceeded:
                exceeded[level] += ways * 0.6**a * 0.39**b * 0.01**c * (bound <= level)
    assert 0.0 < exceeded[0.5] < 0.5
    assert all(share <= level for level, share in exceeded.items())
    assert tail_bound(*divergence([0, 4], law)) == 0.0  # impossible
    assert divergence([0, 0, 1, 2], law)[1] == 2


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "ENDINGS", 10)


def check(drafting: Drafting = CHAIN, runs: int = 250, contexts: int = 2) -> tuple[SampledCheck, int]:
    """Return the check and its number of ticks."""
    ticks: list[None] = []
    found = check_sampled(*toy_loop(drafting), contexts, runs, 0, lambda: ticks.append(None))
    return found, len(ticks)


def test_an_exact_loop_passes() -> None:
    found, ticks = check()
    assert found.passed
    assert 0 < found.accepted < found.drafted
    assert (found.contexts, found.runs, ticks) == (2, 500, 6)
    assert found.level == FALSE_ALARM / 26
    assert {test: len(values) for test, values in found.p_values.items()} == dict.fromkeys(TESTS, 2)
    assert found.overruns == found.ties == 0


@pytest.mark.parametrize("name", ["Medusa's typical acceptance", "ties broken towards the highest id"])
def test_a_mistake_that_is_seen_ends_the_check(name: str) -> None:
    with MISTAKES[name].plant():
        found, ticks = check()
    assert not found.passed
    assert (found.ties > 0) == name.startswith("ties")
    assert (found.contexts, found.runs, ticks) == (1, 250, 3)


def test_where_nothing_is_drafted_nothing_is_proved() -> None:
    loop, places = toy_loop(CHAIN)
    found = check_sampled(replace(loop, drafter=NoDrafter()), places, 2, 100, 0, lambda: None)
    assert found.drafted == 0
    assert not found.passed
    assert min(map(min, found.p_values.values())) > found.level


@pytest.mark.parametrize(
    "drafting",
    [TREE, GREEDY, pytest.param(replace(TREE, verify="recursive"), marks=pytest.mark.slow),
     pytest.param(replace(CHAIN, verify="token", p_min=0.0), marks=pytest.mark.slow)],
    ids=lambda d: f"{d.verify}, width {d.width}, draft_temp {d.draft_temp}, p_min {d.p_min}",
)  # fmt: skip
def test_what_is_exact_passes(drafting: Drafting) -> None:
    found, _ = check(drafting, runs=100, contexts=4)
    assert found.passed
    assert 0 < found.accepted < found.drafted


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_classic_mistake_is_caught(name: str) -> None:
    mistake = MISTAKES[name]
    with mistake.plant():
        assert not check_sampled(*toy_loop(mistake.drafting, mistake.change), 4, 1500, 0, lambda: None).passed
