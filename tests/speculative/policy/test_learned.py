"""What a policy has learned serves the next process, ages, and is checked."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import pytest

from paceline.speculative.policy.acceptance import AcceptanceModel
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.ledger import AGED, TRIAL_CALLS, DrafterValue
from paceline.speculative.tree import chain


def policy() -> GoodputPolicy:
    return GoodputPolicy(DecodingCosts(PassCosts.flat(1.0)))


def taught() -> GoodputPolicy:
    """A policy that has seen a drafter be wrong, at a price."""
    out = policy()
    value = out._drafters.values["model"] = DrafterValue()
    for _ in range(40):
        value.update(3, 0.0, 0.5, 1)
        out.acceptance.learn({}, chain([7], "model", [0.9]), [8])
    return out


def test_a_policy_begins_with_what_another_has_learned() -> None:
    learned = json.loads(json.dumps(taught().learned))
    heir = policy()
    heir.begin_with(learned)
    value = heir._drafters.values["model"]
    assert value.calls == TRIAL_CALLS  # no further trials
    assert value.seconds == pytest.approx(0.5)
    assert value.tokens[3] == pytest.approx(1.0 + AGED * (learned["values"]["model"]["tokens"][3] - 1.0))
    assert heir.acceptance.of("model").probability(0.9, 1) < 0.3
    heir.forget()
    assert heir.learned == {}


def test_a_wrong_verdict_fades_with_the_first_right_guesses() -> None:
    heir = policy()
    heir.begin_with(taught().learned)
    for _ in range(12):
        heir.acceptance.learn({}, chain([7], "model", [0.9]), [7, 1])
    assert heir.acceptance.of("model").probability(0.9, 1) > 0.6


@pytest.mark.parametrize(
    "damage",
    [
        {"tokens": [1.0]},
        {"tokens": [math.nan] * 7},
        {"seconds": -1.0},
        {"seconds": math.inf},
        {"level_seconds": "x"},
    ],
)
def test_a_damaged_value_is_refused_and_changes_nothing(damage: dict[str, Any]) -> None:
    learned, heir = taught().learned, policy()
    learned["values"]["model"] |= damage
    with pytest.raises(ValueError):  # noqa: PT011  # of float() too
        heir.begin_with(learned)
    assert heir.learned == {}


@pytest.mark.parametrize("weights", [[1.0], [math.nan] * 6])
def test_damaged_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="model"):
        AcceptanceModel().begin_with({"model": weights})


def test_reliability_has_mean_prediction_and_share_of_accepted_guesses() -> None:
    model = AcceptanceModel()
    draw = random.Random(0)
    for _ in range(400):
        model.learn({}, chain([7], "model", [0.7]), [7 if draw.random() < 0.7 else 8])
    assert sum(n for _, _, n in model.reliability) == 400
    assert sum(share * n for _, share, n in model.reliability) == pytest.approx(280, abs=30)
    assert all(abs(mean - share) < 0.2 for mean, share, n in model.reliability if n >= 50)
