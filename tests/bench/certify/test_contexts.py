"""The texts of the checks, and the choice of contexts where mistakes show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.bench.certify.certificate import MIN_TEXT_TOKENS, CertifyPlan, extend_texts
from paceline.bench.certify.held import (
    MISTAKE_KINDS,
    ContextRow,
    FixedRowsTarget,
    SamplingSetup,
    detectable_shift,
    first_q,
    recorded_places,
    select_contexts,
    total_variation,
)
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

V = 4
# Rows of the target and of the draft: alike; unlike; a likely draft that the target never says; flat.
P = np.array([[0.7, 0.1, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1], [0.0, 0.5, 0.3, 0.2], [0.25, 0.25, 0.25, 0.25]])
Q = np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.1, 0.6], [0.5, 0.3, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])


def loop(sampling: Sampling | None = None, p_min: float = 0.0, temperature: float = 1.0) -> SamplingSetup:
    place = ContextRow()
    with np.errstate(divide="ignore"):
        target, draft = (
            FixedRowsTarget(ToyTarget(V), np.log(rows).astype(np.float32), place) for rows in (P, Q)
        )
    drafter = ModelDrafter(draft, V, temperature=temperature)
    return SamplingSetup(
        target, drafter, place, Budget(3, 3, p_min=p_min), sampling or Sampling(temperature=1.0), "auto"
    )


def test_what_a_mistake_would_move_is_known_from_both_models_rows() -> None:
    places = recorded_places([[0, 1, 2, 3, 0]], [np.zeros((4, V), np.float32)])
    alike, unlike, impossible, flat = (
        dict(zip(MISTAKE_KINDS, detectable_shift(loop(), place), strict=False)) for place in places
    )
    assert alike["rejected"] == flat["rejected"] == pytest.approx(0.0, abs=1e-6)
    # Half is rejected, and then 0 follows, of which p has 0.6.
    assert unlike["rejected"] == pytest.approx(0.5 * 0.4, abs=1e-6)
    assert unlike["sure"] == 0.0
    assert impossible["sure"] == pytest.approx(
        0.5 * total_variation(P[2], np.array([0, 0.4, 0.4, 0.2])), abs=1e-6
    )
    assert flat["open"] == pytest.approx(np.log(4))


def test_a_penalty_that_overlooks_the_accepted_token_moves_something_only_where_there_is_one() -> None:
    place = recorded_places([[0, 1]], [np.zeros((1, V), np.float32)])[0]
    index = MISTAKE_KINDS.index("prefix")
    assert detectable_shift(loop(), place)[index] == 0.0
    assert detectable_shift(loop(Sampling(temperature=1.0, presence_penalty=1.0)), place)[index] > 0.02


def test_nothing_moves_where_nothing_is_drafted() -> None:
    place = recorded_places([[0, 1]], [np.zeros((1, V), np.float32)])[0]
    for silent in (loop(p_min=0.9), replace(loop(), drafter=NoDrafter())):
        assert first_q(silent, place) is None
        assert detectable_shift(silent, place)[:-1] == (0.0,) * len(MISTAKE_KINDS)


def test_the_best_for_each_kind_are_taken_in_turn_each_once() -> None:
    places = recorded_places([[0, 1, 2, 3, 0]], [np.zeros((4, V), np.float32)])
    rows = [context.row for context in select_contexts(loop(), places, 4)]
    assert rows[:2] == [1, 2]  # rejected, sure
    assert sorted(rows) == [0, 1, 2, 3]
    assert len(select_contexts(loop(), places, 40)) == 4


def test_a_short_text_goes_on_with_the_others_round_and_round() -> None:
    texts = [[1, 2], [3], list(range(200))]
    made = extend_texts(texts, 512)
    assert [len(text) for text in made] == [MIN_TEXT_TOKENS, MIN_TEXT_TOKENS, 200]
    assert made[0] == [1, 2, 3, *range(MIN_TEXT_TOKENS - 3)]
    assert made[1] == [3, *range(MIN_TEXT_TOKENS - 1)]
    assert made[2] == texts[2]
    assert extend_texts([[5]], 512) == [[5] * MIN_TEXT_TOKENS]
    assert extend_texts([[1, 2], list(range(200))], 50) == [[1, 2, *range(48)], list(range(50))]


def test_a_plan_that_leaves_nothing_to_chance_is_given_a_temperature() -> None:
    assert CertifyPlan(sampling=Sampling(top_k=5)).sampling == Sampling(temperature=1.0, top_k=5)
    assert CertifyPlan(sampling=Sampling(temperature=0.3)).sampling.temperature == 0.3
