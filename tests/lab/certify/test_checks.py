"""What the four checks are given: texts that are long enough, and contexts that leave something to chance."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.core.errors import UsageError
from paceline.core.sampling import Sampling
from paceline.lab.certify.certificate import CONTEXT, SHORTEST, Plan, contexts, lengthened


def test_a_short_text_goes_on_with_the_others_round_and_round() -> None:
    texts = [[1, 2], [3], list(range(200))]
    made = lengthened(texts, 512)
    assert [len(text) for text in made] == [SHORTEST, SHORTEST, 200]
    assert made[0] == [1, 2, 3, *range(SHORTEST - 3)]
    assert made[1] == [3, *range(SHORTEST - 1)]
    assert made[2] == texts[2]
    assert lengthened([[5]], 512) == [[5] * SHORTEST]


def test_no_text_is_longer_than_the_context() -> None:
    assert lengthened([[1, 2], list(range(200))], 50) == [[1, 2, *range(48)], list(range(50))]


def test_a_plan_that_leaves_nothing_to_chance_is_given_a_temperature() -> None:
    assert Plan(sampling=Sampling(top_k=5)).sampling == Sampling(temperature=1.0, top_k=5)
    assert Plan(sampling=Sampling(temperature=0.3)).sampling.temperature == 0.3
    assert Plan().as_dict()["prompts"] == list(Plan().prompts)


@pytest.mark.parametrize("wanted", [1, 3, 5, 40])
def test_contexts_are_the_least_certain_rows_of_each_text_in_turn(wanted: int) -> None:
    texts = [[1, 2, 3, 4], [5] * 300]
    sharpness = [np.array([9, 0, 5]), np.array([3, 7])]  # of the rows before the last tokens
    rows = [np.outer(s, [1, 0, 0, 0]).astype(np.float32) for s in sharpness]
    found = contexts(texts, rows, Plan(contexts=wanted, sampling=Sampling(temperature=1.0)))
    assert [context.row for context in found] == [1, 3, 2, 4, 0][:wanted]
    assert found[0].tokens == [1, 2]
    if wanted > 1:
        assert found[1].tokens == [5] * CONTEXT


def test_more_contexts_than_simulations_can_tell_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="50 contexts: at most 40"):
        Plan(contexts=50)
