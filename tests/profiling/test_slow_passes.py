"""A warning about passes that take longer than is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.profiling.slow_passes import PASSES, watch_passes
from paceline.speculative.policy.costs import DecodingCosts, PassCosts

KNOWN = 0.02  # seconds of a pass over one row; a row more takes half of that


@pytest.mark.parametrize(
    ("taken", "known", "slow"),
    [(1.5, KNOWN, False), (2.0, KNOWN, True), (10.0, KNOWN, True), (8.0, 0.001, False)],
)
def test_slow_passes_are_reported_once_unless_short_anyway(
    taken: float, known: float, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.profiling.slow_passes.MIN_SECONDS", 0.005)
    cost = PassCosts({512: {1: known, 2: 1.5 * known, 3: 2 * known, 4: 2.5 * known}}, 1.0)
    target: Any = SimpleNamespace(on_forward=None)
    costs, warnings = DecodingCosts(cost), list[str]()
    watch_passes(target, costs, warnings.append)
    for _ in range(2 * PASSES if target.on_forward is not None else 0):
        target.on_forward(1, 4096, 9 * known)  # beyond the known context lengths
    for rows in [1, 3] * 2 * PASSES:
        cost.update(rows, 300, taken * cost.seconds(rows, 300))  # the policy's adapts
        if target.on_forward is not None:
            target.on_forward(rows, 300, taken * known * (1 + rows) / 2)
    assert [text.partition(";")[0] for text in warnings] == [
        f"passes take {taken:.1f} times what they usually take here"
    ] * slow
    assert costs.is_reliable != slow  # what such a run has taught is not stored
