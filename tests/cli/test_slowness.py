"""Slow passes are noticed; usual ones are not spoken of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli.slowness import MIN_PASSES, SlowPassMonitor
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts

KNOWN = 0.02  # seconds of a pass over one row; a row more takes half of that


def warning(taken: float, known: float = KNOWN) -> str:
    """The warning after passes that take so many times what is known."""
    cost = PassCosts({256: {1: known, 2: 1.5 * known, 3: 2 * known, 4: 2.5 * known}}, 1.0)
    target = SimpleNamespace(on_pass=None)
    costs = DecodingCosts(cost)
    llm: Any = SimpleNamespace(policy=SimpleNamespace(costs=costs), target=target)
    watch = SlowPassMonitor(llm)
    for rows in [1, 3] * MIN_PASSES:
        cost.update(rows, 300, taken * cost.seconds(rows, 300))  # the policy's adapts
        if target.on_pass is not None:
            target.on_pass(rows, 300, taken * known * (1 + rows) / 2)
    said = watch.warning()
    assert costs.usual == (said == "")  # what such a run has taught is not kept
    return said


@pytest.mark.parametrize("taken", [0.5, 1.0, 2.8])
def test_usual_passes_are_not_spoken_of(taken: float) -> None:
    assert warning(taken) == ""


def test_slow_passes_are() -> None:
    assert warning(8.0) == "passes took 8.0 times what they usually take here; paceline doctor tells why"


def test_passes_that_are_short_anyway_are_not_watched() -> None:
    assert warning(8.0, known=0.001) == ""
