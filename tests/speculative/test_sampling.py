"""Conversion of logits to distributions. tests/backends compares the chain with llama.cpp's."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import (
    Sampling,
    adjust_logits,
    argmax,
    dry_penalties,
    filter_top_k,
    filter_top_p,
    filter_typical_p,
    filter_xtc,
    probabilities,
    target_distribution,
)

LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


def p(**settings: float) -> list[float]:
    out: list[float] = probabilities(LOGITS, Sampling(**settings), []).round(12).tolist()  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("top_k", [0, 3])
def test_an_engines_float32_row_becomes_a_distribution_in_float64(top_k: int) -> None:
    row = LOGITS.astype(np.float32)
    exact = np.exp(row.astype(np.float64) / 0.7)[: top_k or 4]
    found = target_distribution(row, Sampling(temperature=0.7, top_k=top_k), ())
    assert found.p.dtype == np.float64
    assert found.p == pytest.approx(exact / exact.sum(), abs=1e-15)


def test_each_filter_keeps_what_it_names() -> None:
    assert p(temperature=1.0, top_k=2) == [0.625, 0.375, 0.0, 0.0]
    assert p(temperature=1.0, top_p=0.7) == [0.625, 0.375, 0.0, 0.0]
    assert p(temperature=1.0, top_p=0.0) == [1.0, 0.0, 0.0, 0.0]
    assert p(temperature=1.0, min_p=0.5) == [0.625, 0.375, 0.0, 0.0]
    assert p(temperature=1.0, min_p=1.0) == [1.0, 0.0, 0.0, 0.0]
    assert p(temperature=1.0, top_k=99) == p(temperature=1.0)


def test_typical_keeps_what_is_about_as_surprising_as_the_average() -> None:
    """The entropy is 1.14 nats; the surprises 0.69, 1.20, 1.90 and 3.00."""
    assert p(temperature=1.0, typical_p=0.25) == [0.0, 1.0, 0.0, 0.0]
    assert p(temperature=1.0, typical_p=0.0) == [0.0, 1.0, 0.0, 0.0]
    assert p(temperature=1.0, typical_p=0.5) == [0.625, 0.375, 0.0, 0.0]
    assert p(temperature=1.0, typical_p=0.9) == [round(x / 0.95, 12) for x in (0.5, 0.3, 0.15)] + [0.0]
    assert p(temperature=1.0, typical_p=0.99) == p(temperature=1.0)
    assert filter_typical_p(np.array([0.0, 1.0, 0.0]), 0.3).tolist() == [1]
    assert filter_typical_p(np.full(4, 0.25), 0.3).tolist() == [0, 1]
    assert filter_typical_p(np.full(4, 0.25), 0.5).tolist() == [0, 1, 2]  # more than half


def test_xtc_mixes_what_it_leaves_with_what_there_was() -> None:
    """Only the least likely of the three tokens above 0.1 stays."""
    left = [0.0, 0.0, 0.75, 0.25]
    assert p(temperature=1.0, xtc_probability=1.0) == left
    mixed = [round(0.75 * x + 0.25 * y, 12) for x, y in zip([0.5, 0.3, 0.15, 0.05], left, strict=True)]
    assert p(temperature=1.0, xtc_probability=0.25) == mixed
    assert p(temperature=1.0, xtc_probability=0.0) == p(temperature=1.0)


def test_xtc_needs_two_that_reach_its_threshold() -> None:
    def left(threshold: float) -> list[float]:
        return p(temperature=1.0, xtc_probability=1.0, xtc_threshold=threshold)

    assert left(0.0) == [0.0, 0.0, 0.0, 1.0]
    assert left(0.29) == [0.0, round(0.3 / 0.5, 12), round(0.15 / 0.5, 12), round(0.05 / 0.5, 12)]
    assert left(0.31) == left(0.5) == left(1.0) == p(temperature=1.0)
    assert filter_xtc(np.array([0.5, 0.5]), 0.5).tolist() == [1]
    assert filter_xtc(np.array([0.5, 0.5]), 0.51).tolist() == [0, 1]
    assert filter_xtc(np.array([1.0]), 0.0).tolist() == [0]


def test_xtc_looks_at_what_the_filters_left_before_the_temperature() -> None:
    assert p(temperature=100.0, xtc_probability=1.0, xtc_threshold=0.2)[0] == 0.0
    assert p(temperature=1.0, top_k=2, xtc_probability=1.0) == [0.0, 1.0, 0.0, 0.0]
    assert p(temperature=1.0, top_k=1, xtc_probability=1.0) == [1.0, 0.0, 0.0, 0.0]


@given(
    weights=st.lists(st.floats(-5, 5) | st.just(-math.inf), min_size=2, max_size=9).filter(
        lambda logits: max(logits) > -math.inf
    ),
    sampling=st.builds(
        Sampling,
        temperature=st.sampled_from([0.2, 1.0, 3.0]),
        top_k=st.sampled_from([0, 2, 5]),
        typical_p=st.sampled_from([1.0, 0.6, 0.1]),
        top_p=st.sampled_from([1.0, 0.7]),
        min_p=st.sampled_from([0.0, 0.2]),
        xtc_probability=st.sampled_from([0.0, 0.3, 1.0]),
        xtc_threshold=st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
        top_n_sigma=st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
        dynatemp_range=st.sampled_from([0.0, 0.1, 5.0]),
        dynatemp_exponent=st.sampled_from([0.0, 1.0, 2.5]),
    ),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_any_chain_over_any_row_is_a_distribution_over_what_is_possible(
    weights: list[float], sampling: Sampling, data: st.DataObject
) -> None:
    logits = np.array(weights)
    possible = np.flatnonzero(np.isfinite(logits)).tolist()
    mask = np.zeros(len(logits), dtype=np.bool_)
    mask[data.draw(st.sets(st.sampled_from(possible), min_size=1).map(sorted))] = True
    out = probabilities(logits, sampling, (), mask)
    assert out.sum() == pytest.approx(1.0, abs=1e-12)
    assert (out >= 0.0).all()
    assert not out[~mask].any()


def test_a_filter_that_may_drop_the_likeliest_token_contradicts_greedy() -> None:
    for settings_ in ({"typical_p": 0.9}, {"xtc_probability": 0.1}):
        with pytest.raises(UsageError, match="set a temperature above 0"):
            Sampling(**settings_)  # type: ignore[arg-type]
        assert Sampling(temperature=0.1, **settings_)  # type: ignore[arg-type]


def test_a_wide_nucleus_is_found_as_surely_as_a_narrow_one() -> None:
    level = np.full(1000, 0.001)
    assert len(filter_top_p(level, 0.5)) == pytest.approx(500, abs=1)
    assert filter_top_p(level, 0.0105).tolist() == list(range(11))
    assert len(filter_top_p(level, 1.0)) == pytest.approx(1000, abs=1)


def test_ties_go_to_the_lowest_id_everywhere() -> None:
    level = np.zeros(5)
    assert argmax(level) == 0
    assert filter_top_k(level, 2).tolist() == [0, 1]
    assert filter_top_k(np.array([1.0, 2.0, 1.0, 2.0]), 3).tolist() == [1, 3, 0]
    assert np.flatnonzero(probabilities(level, Sampling(temperature=1.0, top_k=2), [])).tolist() == [0, 1]


def test_penalties_count_only_the_window() -> None:
    sampling = Sampling(frequency_penalty=1.0, presence_penalty=0.5, repeat_last_n=3)
    out = adjust_logits(np.array([2.0, 2.0, -1.0]), sampling, [2, 1, 0, 0])
    assert out.tolist() == [2.0 - 2 * 1.0 - 0.5, 2.0 - 1.0 - 0.5, -1.0]


def test_dry_penalises_what_continues_the_longest_repeat() -> None:
    """2 3 occurs before 4 and before 5; 1 2 3, which is longer, before 4."""
    dry = Sampling(dry_multiplier=0.5, dry_base=2.0, dry_allowed_length=1)
    text = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]
    assert dry_penalties(dry, text) == {4: 0.5 * 2.0**2, 5: 0.5 * 2.0}
    assert dry_penalties(replace(dry, dry_allowed_length=3), text) == {4: 0.5}
    assert dry_penalties(replace(dry, dry_allowed_length=4), text) == {}
    assert dry_penalties(replace(dry, dry_penalty_last_n=6), text) == {5: 0.5 * 2.0}
    assert dry_penalties(replace(dry, dry_breakers={1: ((2,),)}), text) == {4: 0.5, 5: 0.5}
    assert dry_penalties(replace(dry, dry_breakers={4: ((),)}), text) == {5: 0.5 * 2.0}
    assert dry_penalties(dry, []) == {}
    assert dry_penalties(replace(dry, dry_allowed_length=0), [1, 2, 1]) == {2: 1.0, 1: 0.5}
    assert dry_penalties(replace(dry, dry_base=1.0), [7] * 999) == {7: 0.5}


def test_a_repeat_of_any_length_has_a_finite_penalty_and_leaves_a_token() -> None:
    dry = Sampling(dry_multiplier=1e15, dry_base=1e15, dry_penalty_last_n=9000)
    assert adjust_logits(np.zeros(2, np.float32), dry, [1] * 9000).tolist() == [0.0, pytest.approx(-1e15)]


def test_a_dynamic_temperature_lies_where_the_entropy_does() -> None:
    sure, level = np.array([50.0, 0.0]), np.array([1.0, 1.0])
    for temperature in (0.0, 1.0):
        warm = Sampling(temperature=temperature, dynatemp_range=1.0)
        assert probabilities(sure, warm, ()).tolist() == [1.0, 0.0]
        assert probabilities(np.array([-math.inf, 2.0]), warm, ()).tolist() == [0.0, 1.0]  # at 0
        assert probabilities(level, replace(warm, top_k=1), ()).tolist() == [1.0, 0.0]
        assert probabilities(level, warm, ()).tolist() == [0.5, 0.5]
    assert not Sampling(dynatemp_range=1.0).greedy


def test_the_repeat_penalty_makes_a_negative_logit_less_likely_too() -> None:
    out = adjust_logits(np.array([2.0, -2.0, 0.0]), Sampling(repeat_penalty=2.0), [0, 1, 2])
    assert out.tolist() == [1.0, -4.0, 0.0]


OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "temperature": (math.nan, -0.1, math.inf),
    "top_k": (-1,),
    "top_p": (1.01, -0.1, math.nan),
    "min_p": (2.0,),
    "typical_p": (-0.1, math.nan),
    "xtc_probability": (1.1,),
    "xtc_threshold": (-0.1,),
    "top_n_sigma": (-1.1, math.inf),
    "dynatemp_range": (-0.1, math.nan),
    "dynatemp_exponent": (-1.0,),
    "dry_multiplier": (-0.1, math.inf),
    "dry_base": (0.9,),
    "dry_allowed_length": (-1,),
    "dry_penalty_last_n": (-1, (1 << 16) + 1),
    "repeat_penalty": (0.0, math.nan),
    "presence_penalty": (math.nan,),
    "frequency_penalty": (math.inf,),
    "repeat_last_n": (-1,),
    "logit_bias": ({-1: 0.0}, {1: math.nan}, {1: math.inf}),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, v) for name, values in OUT_OF_RANGE.items() for v in values]
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        Sampling(**{name: value})


def test_a_later_change_of_a_logit_bias_does_not_change_the_settings() -> None:
    bias = {1: 2.0}
    sampling = Sampling(logit_bias=bias)
    bias[1] = 3.0
    assert sampling.logit_bias == {1: 2.0}


@pytest.mark.parametrize("temperature", [5e-324, 1e-310, 1e-40])
def test_the_lowest_temperatures_draw_the_likeliest_token(temperature: float) -> None:
    logits = np.array([0.0, 3.0, -np.inf, 2.9], np.float32)
    assert probabilities(logits, Sampling(temperature=temperature), ()).tolist() == [0, 1, 0, 0]
