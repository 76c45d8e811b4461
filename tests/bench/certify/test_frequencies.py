"""Evidence against a distribution: valid after every draw, and growing if the distribution is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paceline.bench.certify.frequencies import (
    CLOSENESS,
    OutcomeTable,
    evidence,
    p_value,
    shift_probability,
    smallest_bias,
)

P = np.array([0.5, 0.3, 0.15, 0.05])


def table(p: np.ndarray, n: int = 2000, seed: int = 0) -> OutcomeTable:
    made = OutcomeTable(P, n)
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
        draws = random.choice(4, size=300, p=P)
        counts = np.zeros((300, 5), np.int64)
        counts[np.arange(300), draws] = 1
        seen = evidence(counts.cumsum(0), np.array([*P, 0.0]))
        accused += bool(p_value(float(seen.max())) <= level)
    assert accused <= 0.1 * 200


def test_small_biases_are_found_by_all_samples_together_that_none_shows_alone() -> None:
    biased = P * np.array([0.9, 1.1, 1.1, 1.1])
    found = [table(biased, seed=seed).evidence for seed in range(8)]
    assert p_value(sum(found)) < 1e-4
    assert min(map(p_value, found)) > p_value(sum(found))


def test_the_smallest_bias_is_found_99_times_in_100_and_half_of_it_is_not() -> None:
    level = 1e-3
    bias = smallest_bias([table(P)], level, 0)
    assert 0.02 < bias < 0.2
    found = [
        p_value(table(shift_probability(P, share), seed=100 + seed).evidence) < level
        for share in (bias, bias / 2)
        for seed in range(30)
    ]
    assert sum(found[:30]) >= 28
    assert sum(found[30:]) < 25


def test_replacing_keeps_a_distribution() -> None:
    for share in (0.0, 0.2, 0.9):
        moved = shift_probability(P, share)
        assert moved.sum() == pytest.approx(1.0)
        assert (moved >= 0).all()
    nearly = np.array([0.7960461129317589, 0.20395388706824125, 0.0])
    assert shift_probability(nearly, 0.875).max() <= 1.0  # by rounding the second became 1 and a little
