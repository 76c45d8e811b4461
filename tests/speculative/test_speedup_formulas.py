"""The speedup formulas against enumerated outcomes, and against verification."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative import speedup_formulas as theory
from worlds import Path, World, induced, plant

RATES = [0.0, 0.25, 0.59, 0.8, 0.999999, 1.0]
rates = st.floats(0.0, 1.0)
costs = st.floats(0.0, 2.0)
lengths = st.integers(1, 24)


def chains(a: float, k: int) -> Iterator[tuple[float, int, int]]:
    """Yield the outcomes of K independent tokens: probability, accepted tokens, rejection."""
    for kept in product((True, False), repeat=k):
        probability = math.prod(a if good else 1 - a for good in kept)
        accepted = kept.index(False) if False in kept else k
        yield probability, accepted, int(accepted < k)


@pytest.mark.parametrize("k", [1, 2, 5, 10])
@pytest.mark.parametrize("a", RATES)
def test_expected_tokens_is_the_mean_over_every_outcome(a: float, k: int) -> None:
    mean = sum(probability * (accepted + 1) for probability, accepted, _ in chains(a, k))
    assert theory.expected_tokens(a, k) == pytest.approx(mean, rel=1e-12)


@dataclass(frozen=True)
class Stationary(World):
    """A world with one p and one q at every position, as the formula assumes."""

    def _weights(self, what: int, path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return super()._weights(what, ())


@pytest.mark.parametrize("seed", range(4))
def test_expected_tokens_is_what_the_token_rule_really_emits(seed: int) -> None:
    world, k = Stationary(3, seed), 3
    a = float(np.minimum(world.p(()), world.q(())).sum())
    emitted = 1 + induced(world, plant(*(1,) * k), k, "token").accepted
    assert theory.expected_tokens(a, k) == pytest.approx(emitted, rel=1e-12)


@given(a=rates, k=lengths)
def test_expected_tokens_is_continuous_where_the_quotient_has_its_pole(a: float, k: int) -> None:
    assert theory.expected_tokens(1 - 1e-15 * a, k) == pytest.approx(k + 1, rel=1e-12)
    if a < 0.9:
        assert theory.expected_tokens(a, k) == pytest.approx((1 - a ** (k + 1)) / (1 - a), rel=1e-12)


@given(a=rates, b=rates, k=lengths)
def test_more_acceptance_and_longer_drafts_never_emit_less(a: float, b: float, k: int) -> None:
    low, high = sorted((a, b))
    assert theory.expected_tokens(low, k) <= theory.expected_tokens(high, k)
    assert theory.expected_tokens(a, k) <= theory.expected_tokens(a, k + 1) <= k + 2


@given(a=rates, k=lengths, c=costs, v=st.floats(1.0, 20.0))
def test_what_costs_more_gains_less(a: float, k: int, c: float, v: float) -> None:
    assert theory.speedup(a, k, c, v) <= theory.speedup(a, k, c)
    assert theory.speedup(a, k, c) <= theory.speedup(a, k, 0.0) == theory.expected_tokens(a, k)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("a", RATES)
def test_acceptance_finds_the_rate_that_made_the_chains(a: float, k: int) -> None:
    # Every outcome as often as its probability says, in counts large enough to be whole.
    scale = 10**15
    accepted = sum(round(scale * probability) * kept for probability, kept, _ in chains(a, k))
    rejected = sum(round(scale * probability) * failed for probability, _, failed in chains(a, k))
    assert theory.acceptance(accepted, rejected) == pytest.approx(a, abs=1e-12)


@given(a=rates, c=costs, curve=st.lists(st.floats(1.0, 8.0), min_size=12, max_size=12))
def test_the_best_draft_is_behind_no_other(a: float, c: float, curve: list[float]) -> None:
    def verify(rows: int) -> float:
        return curve[rows - 2]

    gains = [1.0, *(theory.speedup(a, k, c, verify(k + 1)) for k in range(1, 13))]
    assert theory.best_n_draft(a, c, verify, longest=12) == gains.index(max(gains))


def test_the_gain_of_mtp_layers_is_that_of_the_best_length_at_either_acceptance() -> None:
    low, high = theory.expected_gains(0.1, lambda rows: 1 + 0.05 * rows, 8)
    tried = [theory.speedup(theory.MTP_ACCEPTANCE[0], k, 0.1, 1 + 0.05 * (k + 1)) for k in range(1, 9)]
    assert low == max(tried) < high
    assert theory.expected_gains(0.1, lambda rows: float(rows), 8) == (1.0, 1.0)


@given(v=st.floats(0.5, 30.0), k=lengths)
def test_break_even_is_where_a_draft_that_is_free_neither_gains_nor_loses(v: float, k: int) -> None:
    a = theory.break_even(v, k)
    if a is None:
        assert theory.expected_tokens(1.0, k) < v
    elif v >= 1.0:
        assert theory.speedup(a, k, 0.0, v) == pytest.approx(1.0, abs=1e-9)
    else:  # the pass is cheaper than one row alone: anything gains
        assert a == pytest.approx(0.0, abs=1e-9)


def test_experts_grow_from_those_of_one_row_to_all_of_them() -> None:
    assert theory.distinct_experts(64, 8, 1) == pytest.approx(8)
    assert theory.distinct_experts(64, 8, 10**4) == pytest.approx(64)
    assert theory.distinct_experts(2, 1, 2) == pytest.approx(1.5)  # of four ways two read one, two read both
    assert theory.distinct_experts(4, 9, 1) == 4  # by a header that cannot be right
