"""The sampled check: what it compares with is what plain sampling gives, and exact loops pass."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from enumeration import drafted_distribution
from paceline.core.ports import Budget
from paceline.core.sampling import Sampling
from paceline.drafters.model import ModelDrafter
from paceline.engines.toy import ToyTarget
from paceline.lab.certify import frequencies
from paceline.lab.certify.held import HeldTarget, Place, recorded
from paceline.lab.certify.sampled import FALSE_ALARM, Context, check_sampled, stated

V = 6
TEXT = np.random.default_rng(3).integers(V, size=40).tolist()
SAMPLING = Sampling(temperature=0.9, top_k=4, repeat_penalty=1.2, presence_penalty=-0.5, logit_bias={2: 0.4})
CONTEXTS = [Context(TEXT[:10], 5), Context(TEXT[:25], 20)]
BUDGET = Budget(depth=2, nodes=2, p_min=0.0)


@pytest.fixture(autouse=True)
def fewer_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequencies, "SIMULATED", 8_000)


def held() -> tuple[HeldTarget, HeldTarget, Place]:
    place = Place()
    target, draft = (
        HeldTarget(model, recorded(model, TEXT, 30), place)
        for model in (ToyTarget(V, sharpness=1.0), ToyTarget(V, sharpness=1.0, noise=0.4))
    )
    return target, draft, place


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_what_is_stated_is_what_the_loop_gives_by_enumeration(temperature: float) -> None:
    target, draft, place = held()
    drafter = ModelDrafter(draft, V, temperature=temperature)
    for context in CONTEXTS:
        place.at = context.row
        exact = drafted_distribution(target, drafter, context.tokens, BUDGET, SAMPLING, 2)  # type: ignore[arg-type]
        n = 10**6  # so that nothing is rare
        counts = Counter({(a, b): round(p * n) for (a, b), p in exact.items()})
        first, pair = stated(target, place, context, SAMPLING, counts)
        assert first.n == pair.n == counts.total()
        for sample in (first, pair):
            assert sample.p.sum() == pytest.approx(1.0, abs=1e-12)
            np.testing.assert_allclose(sample.counts / n, sample.p, atol=1e-5)
        assert (pair.p > 0).sum() == 16  # top-k 4, twice


def test_pairs_with_a_rare_first_token_are_one_outcome() -> None:
    target, _, place = held()
    place.at = CONTEXTS[0].row
    sampling = Sampling(temperature=1.0)
    counts = Counter({(a, b): 1 for a in range(V) for b in range(V)})
    first, pair = stated(target, place, CONTEXTS[0], sampling, counts)
    assert first.n == pair.n == V * V
    assert len(first.p) < V + 2
    assert pair.p.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(5))
def test_an_exact_loop_passes(seed: int) -> None:
    target, draft, place = held()
    ticks: list[None] = []
    sampled = check_sampled(
        target,
        ModelDrafter(draft, V, temperature=0.8),
        place,
        CONTEXTS,
        BUDGET,
        SAMPLING,
        rule="auto",
        runs=250,
        seed=seed,
        tick=lambda: ticks.append(None),
    )
    assert sampled.passed
    assert 0 < sampled.accepted < sampled.drafted
    assert (sampled.contexts, sampled.runs, len(ticks)) == (2, 250, 6)
    assert sampled.level == FALSE_ALARM / 6
    assert len(sampled.first.p_values) == len(sampled.pair.p_values) == 3
    assert 0.0 < sampled.first.smallest_bias < 1.0


def test_the_figures_come_with_the_verdict() -> None:
    target, draft, place = held()
    sampled = check_sampled(
        target, ModelDrafter(draft, V), place, CONTEXTS, BUDGET, SAMPLING,
        rule="auto", runs=100, seed=0, tick=lambda: None,
    )  # fmt: skip
    record = sampled.as_dict()
    assert record["passed"] is sampled.passed
    assert record["first_token"]["p_values"] == sampled.first.p_values
    assert record["first_pair"]["smallest_bias"] == sampled.pair.smallest_bias
