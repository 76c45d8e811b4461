"""Inputs of the checks: texts of sufficient length, and a temperature above 0."""

from __future__ import annotations

from paceline.bench.certify.certificate import MIN_TEXT_TOKENS, CertifyPlan, extend_texts
from paceline.speculative.sampling import Sampling


def test_a_short_text_goes_on_with_the_others_round_and_round() -> None:
    texts = [[1, 2], [3], list(range(200))]
    made = extend_texts(texts, 512)
    assert [len(text) for text in made] == [MIN_TEXT_TOKENS, MIN_TEXT_TOKENS, 200]
    assert made[0] == [1, 2, 3, *range(MIN_TEXT_TOKENS - 3)]
    assert made[1] == [3, *range(MIN_TEXT_TOKENS - 1)]
    assert made[2] == texts[2]
    assert extend_texts([[5]], 512) == [[5] * MIN_TEXT_TOKENS]


def test_no_text_is_longer_than_the_context() -> None:
    assert extend_texts([[1, 2], list(range(200))], 50) == [[1, 2, *range(48)], list(range(50))]


def test_a_plan_that_leaves_nothing_to_chance_is_given_a_temperature() -> None:
    assert CertifyPlan(sampling=Sampling(top_k=5)).sampling == Sampling(temperature=1.0, top_k=5)
    assert CertifyPlan(sampling=Sampling(temperature=0.3)).sampling.temperature == 0.3
