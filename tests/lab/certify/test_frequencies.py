"""The exact G-test: right about fair samples, sharp about biased ones, honest about what it could see."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.lab.certify import frequencies
from paceline.lab.certify.frequencies import Sample, g, judge, pooled, replaced

P = np.array([0.5, 0.3, 0.15, 0.05])


def sample(p: np.ndarray, n: int = 2000, seed: int = 0) -> Sample:
    return pooled(np.random.default_rng(seed).multinomial(n, p / p.sum()), P)


def test_rare_outcomes_are_pooled_and_impossible_ones_kept_apart() -> None:
    made = pooled(np.array([60, 38, 1, 1, 0]), np.array([0.6, 0.38, 0.01, 0.01, 0.0]))
    assert made.counts.tolist() == [60, 38, 2, 0]
    assert made.p == pytest.approx([0.6, 0.38, 0.02, 0.0])
    assert made.n == 100


def test_g_is_zero_for_what_is_expected_and_infinite_for_the_impossible() -> None:
    assert g(np.array([50, 30, 20]), np.array([0.5, 0.3, 0.2])) == pytest.approx(0.0)
    assert g(np.array([50, 30, 20]), np.array([0.5, 0.5, 0.0])) == np.inf
    assert g(np.array([50, 50, 0]), np.array([0.5, 0.5, 0.0])) == pytest.approx(0.0)


def test_g_agrees_with_its_textbook_value() -> None:
    counts = np.array([10, 20, 30])
    assert g(counts, np.full(3, 1 / 3)) == pytest.approx(2 * sum(o * np.log(o / 20) for o in counts))


def test_p_values_of_fair_samples_are_uniform() -> None:
    values = np.array([judge([sample(P, seed=seed)], 0.01, seed).p_values[0] for seed in range(60)])
    assert 0.35 < values.mean() < 0.65
    assert (values < 0.05).sum() <= 9


def test_small_biases_are_found_by_all_samples_together_that_none_shows_alone() -> None:
    biased = P * np.array([0.94, 1.06, 1.06, 1.06])
    samples = [sample(biased, seed=seed) for seed in range(8)]
    tested = judge(samples, 1e-3, 0)
    assert tested.p_values[-1] < 1e-3
    assert min(tested.p_values[:-1]) > tested.p_values[-1]


def test_a_single_impossible_outcome_is_enough() -> None:
    counts = np.array([1000, 600, 300, 99, 1])
    tested = judge([pooled(counts, np.array([*P, 0.0]))], 1e-3, 0)
    assert tested.p_values[0] < 1e-4


def test_the_smallest_bias_is_found_99_times_in_100_and_half_of_it_is_not() -> None:
    level = 1e-3
    bias = judge([sample(P)], level, 0).smallest_bias
    assert 0.02 < bias < 0.15
    found = [
        judge([sample(replaced(P, share), seed=100 + seed)], level, seed).p_values[0] < level
        for share in (bias, bias / 2)
        for seed in range(30)
    ]
    assert sum(found[:30]) >= 28
    assert sum(found[30:]) < 25


def test_nothing_can_be_found_where_nothing_is_left_to_chance() -> None:
    certain = pooled(np.array([500, 0]), np.array([1.0, 0.0]))
    assert judge([certain], 1e-3, 0).smallest_bias == 1.0


def test_replacing_keeps_a_distribution() -> None:
    for share in (0.0, 0.2, 0.9):
        moved = replaced(P, share)
        assert moved.sum() == pytest.approx(1.0)
        assert (moved >= 0).all()
    assert replaced(P, 0.2)[0] == pytest.approx(0.3)


@pytest.fixture(autouse=True)
def fewer_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequencies, "SIMULATED", 20_000)
