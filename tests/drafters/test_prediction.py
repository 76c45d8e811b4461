"""Drafts that follow a predicted output, by example."""

from __future__ import annotations

import pytest

import paceline
from paceline.drafters.compose import ComposedState, PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.prediction import PredictionDrafter, PredictionState
from paceline.speculative.interfaces import NO_FEATURES, Budget
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import EMPTY

FOUR = Budget(depth=4, nodes=4)
PREDICTION = [10, 11, 12, 13, 14, 15, 16, 17, 12, 13, 99]


def after(output: list[int], budget: Budget = FOUR) -> tuple[int, ...]:
    """Return the draft behind an output, with every token in a step of its own."""
    drafter = PredictionDrafter()
    state = drafter.open([1], 0)
    state.predict(PREDICTION)
    for token in output:
        state.update(Step((token,), ("target",), (), {}, {}, None, StepTimes()), NO_FEATURES)
    return drafter.propose([(state, budget)])[0].tokens


@pytest.mark.parametrize(
    ("output", "draft"),
    [
        ([], (10, 11, 12, 13)),
        ([10, 11], (12, 13, 14, 15)),
        ([10, 50], (12, 13, 14, 15)),  # a token is replaced
        ([10, 50, 11, 12], (13, 14, 15, 16)),  # or more of them: on from the next match
        ([14, 15], (16, 17, 12, 13)),  # some were left out
        ([10, 11, 12, 13, 70, 17, 12, 13], (99,)),  # the longest match
        ([50, 12, 13], (14, 15, 16, 17)),  # of equal ones the next
        ([10, 11, 12, 13, 14, 80, 10, 11], (12, 13, 14, 15)),  # back to the beginning
        (PREDICTION, ()),
    ],
)
def test_draft_continues_the_prediction_behind_the_output(output: list[int], draft: tuple[int, ...]) -> None:
    assert after(output) == draft


def test_draft_is_left_out_while_the_output_is_not_as_predicted() -> None:
    assert after([50, 51], Budget(4, 4, p_min=0.4)) == ()
    assert after([50, 51, 10, 11], Budget(4, 4, p_min=0.4)) == (12, 13, 14, 15)


def test_drafter_is_called_only_for_requests_with_a_prediction() -> None:
    drafter = PortfolioDrafter([PredictionDrafter(), LookupDrafter()])
    states: list[ComposedState] = [drafter.open([1, 2], 0) for _ in range(2)]
    states[1].predict(PREDICTION)
    without, predicted = drafter.propose([(state, FOUR) for state in states])
    assert (without.called, without.tokens) == (("lookup",), EMPTY.tokens)
    assert (predicted.called, predicted.tokens) == (("prediction", "lookup"), (10, 11, 12, 13))
    assert isinstance(states[0].parts[0], PredictionState)
    drafter.close()


def test_prediction_of_a_request_reaches_its_drafter() -> None:
    with paceline.load("toy:seed=3", drafters="prediction,lookup") as llm:
        plain = llm.generate([1, 2, 3], max_tokens=8, plain=True)
        predicted = llm.generate([1, 2, 3], max_tokens=8, prediction=list(plain.tokens))
    assert predicted.tokens == plain.tokens
    assert predicted.stats.by_source["prediction"].accepted > 0
