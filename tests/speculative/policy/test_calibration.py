"""Calibration against drafters with known acceptance probabilities."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.policy.acceptance import (
    EMA_WEIGHT,
    INITIAL_TREND,
    Calibrator,
    logit_at,
    logit_of,
    sigmoid,
)

# A guess of a drafter: its score, its position, and the chance that it is right.
Guess = Callable[[random.Random], tuple[float, int, float]]


KINDS: dict[str, Guess] = {
    "as stated": lambda r: (s := r.uniform(0.05, 0.95), 1 + r.randrange(6), s),
    "states 0.9, is 0.5": lambda r: (0.9, 1 + r.randrange(3), 0.5),
    "states 0.2, is 0.8": lambda r: (0.2, 1, 0.8),
    "says 1, is 0.35": lambda r: (1.0, 1 + r.randrange(5), 0.35),
    "says 0, is 0.35": lambda r: (0.0, 1 + r.randrange(5), 0.35),
    "score says nothing": lambda r: (r.random(), 1, 0.3),
    "worse than its score": lambda r: (s := r.random(), 1, s * s),
    "score upside down": lambda r: (s := r.random(), 1, 1 - s),
    "by position": lambda r: (0.7, d := 1 + r.randrange(4), (0.9, 0.7, 0.5, 0.3)[d - 1]),
    "two kinds of guesses": lambda r: (s := r.choice([0.3, 1.0]), 1, 0.1 if s < 0.5 else 0.85),
    "always right": lambda r: (0.5, 1, 1.0),
    "never right": lambda r: (0.9, 1, 0.0),
}


def learn(calibrator: Calibrator, guess: Guess, r: random.Random, n: int) -> list[tuple[float, bool]]:
    """Return the predictions with their outcomes."""
    told = []
    for _ in range(n):
        score, depth, chance = guess(r)
        right = r.random() < chance
        told.append((sigmoid(calibrator.update(logit_at(score), depth, 0.0, right)), right))
    return told


def calibration_error(told: Sequence[tuple[float, bool]]) -> float:
    """Return the expected calibration error: the mean deviation of ten bins, weighted by their sizes."""
    bins: dict[int, float] = defaultdict(float)
    for said, happened in told:
        bins[int(said * 10)] += said - happened
    return sum(map(abs, bins.values())) / len(told)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", KINDS)
def test_after_five_hundred_outcomes_what_is_said_is_what_happens(name: str, seed: int) -> None:
    """The expected calibration error over 2000 guesses; perfect knowledge would have 0.02."""
    calibrator, r = Calibrator(), random.Random(seed)
    learn(calibrator, KINDS[name], r, 500)
    assert calibration_error(learn(calibrator, KINDS[name], r, 2000)) <= 0.05


@pytest.mark.parametrize(("before", "after"), [(0.9, 0.2), (0.2, 0.9), (0.8, 0.4)])
def test_a_change_of_the_text_is_followed_within_a_few_dozen_guesses(before: float, after: float) -> None:
    """Within 0.15 of the new probability after 30 guesses in the median, and 60 at most."""
    took = []
    for seed in range(40):
        calibrator, r, recent = Calibrator(), random.Random(seed), 0.0
        for n in range(500):
            chance = before if n < 300 else after
            if n >= 300 and abs(calibrator.probability(0.7, 1, recent) - after) <= 0.15:
                took.append(n - 300)
                break
            right = r.random() < chance
            calibrator.update(logit_at(0.7), 1, recent, right)
            recent += EMA_WEIGHT * ((1.0 if right else -1.0) - recent)
    assert len(took) == 40
    assert median(took) <= 30
    assert max(took) <= 60


@pytest.mark.parametrize("score", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("lucky", [True, False])
def test_what_was_true_for_very_long_is_unlearned_as_fast(lucky: bool, score: float) -> None:
    """Twenty thousand guesses of one kind, then a few of the other."""
    calibrator, recent = Calibrator(), 0.0
    for n in range(20_010):
        right = lucky == (n < 20_000)
        calibrator.update(logit_at(score), 1, recent, right)
        recent += EMA_WEIGHT * ((1.0 if right else -1.0) - recent)
        if n == 20_000 - 1:
            assert (calibrator.probability(score, 1, recent) > 0.99) == lucky
    assert (calibrator.probability(score, 1, recent) < 0.5) == lucky


@pytest.mark.parametrize("sure", [1.0, -1.0])
def test_a_belief_as_firm_as_can_be_grows_no_firmer_and_gives_way_to_the_first_surprise(sure: float) -> None:
    calibrator, firm = Calibrator(), [1.0, INITIAL_TREND, 10.0 * sure, 0.0, 0.0, 0.0]
    calibrator.weights[:] = firm
    assert calibrator.update(0.5, 1, 0.0, sure > 0) == 10.0 * sure + 0.5
    assert calibrator.weights == firm
    calibrator.update(0.5, 1, 0.0, sure < 0)
    assert sure * calibrator.weights[2] < 10.0
    assert sure * calibrator.weights[0] < sure


@pytest.mark.parametrize("seed", range(5))
def test_what_is_seldom_seen_is_not_learned_from_a_whisper(seed: int) -> None:
    """Guesses at neutral recent acceptance say little about its trend."""
    calibrator, r = Calibrator(), random.Random(seed)
    for _ in range(1000):
        calibrator.update(logit_at(0.5), 1, r.choice([-0.02, 0.02]), r.random() < 0.5)
    even, lucky = calibrator.probability(0.5, 1, 0.0), calibrator.probability(0.5, 1, 1.0)
    assert 0.15 < lucky - even < 0.45


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(
    outcomes=st.lists(
        st.tuples(
            st.one_of(st.floats(0.0, 1.0), anything), st.integers(1, 64), st.floats(-1.0, 1.0), st.booleans()
        ),
        max_size=60,
    ),
    score=st.one_of(st.sampled_from([0.0, 1.0, -0.1, 1.1]), anything),
    repeat=st.sampled_from([1, 30]),
)
def test_no_drafter_makes_it_say_0_or_1_or_fail(
    outcomes: list[tuple[float, int, float, bool]], score: float, repeat: int
) -> None:
    calibrator = Calibrator()
    for said, depth, recent, right in outcomes * repeat:
        calibrator.update(logit_at(said), depth, recent, right)
        assert 0.0 < calibrator.probability(score, depth, recent) < 1.0
    assert all(map(math.isfinite, calibrator.weights))


@given(score=st.floats(0.0, 1.0))
def test_the_table_is_the_logarithm_to_a_thousandth_of_the_score(score: float) -> None:
    assert logit_of(score - 0.001) - 1e-9 <= logit_at(score) <= logit_of(score) + 1e-9
