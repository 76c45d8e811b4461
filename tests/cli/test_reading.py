"""Progress of reading a long prompt: a line on a terminal, removed afterwards.

Slow passes are reported; usual ones are not."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli.completion import MIN_PASSES, PrefillProgress, SlowPassMonitor
from paceline.cli.interrupts import Interrupts
from paceline.speculative.policy.costs import DecodingCosts, PassCosts


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    tell = PrefillProgress(Interrupts())
    tell(0, 2776)
    assert screen.getvalue() == "\rreading the prompt: 0 of 2,776 tokens"
    tell(512, 2776)
    last = screen.getvalue().rpartition("\r")[2]
    assert last.startswith("reading the prompt: 512 of 2,776 tokens, ")
    assert last.endswith(" tokens/s")
    tell(2776, 2776)
    assert screen.getvalue().endswith(f"\r{' ' * len(last)}\r")


KNOWN = 0.02  # seconds of a pass over one row; a row more takes half of that


def warning(taken: float, known: float = KNOWN) -> str:
    """The warning after passes that take so many times what is known."""
    cost = PassCosts({256: {1: known, 2: 1.5 * known, 3: 2 * known, 4: 2.5 * known}}, 1.0)
    target = SimpleNamespace(on_forward=None)
    costs = DecodingCosts(cost)
    llm: Any = SimpleNamespace(policy=SimpleNamespace(costs=costs), target=target)
    watch = SlowPassMonitor(llm)
    for rows in [1, 3] * MIN_PASSES:
        cost.update(rows, 300, taken * cost.seconds(rows, 300))  # the policy's adapts
        if target.on_forward is not None:
            target.on_forward(rows, 300, taken * known * (1 + rows) / 2)
    said = watch.warning()
    assert costs.is_reliable == (said == "")  # what such a run has taught is not kept
    return said


@pytest.mark.parametrize(
    ("taken", "known", "slow"), [(2.8, KNOWN, False), (8.0, KNOWN, True), (8.0, 0.001, False)]
)
def test_slow_passes_are_reported_unless_short_anyway(taken: float, known: float, slow: bool) -> None:
    words = "passes took 8.0 times what they usually take here; paceline doctor tells why"
    assert warning(taken, known) == words * slow
