"""Slow passes are noticed, with what keeps the processors busy; usual ones are not spoken of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.cli import slowness
from paceline.cli.slowness import MIN_PASSES, Slowness
from paceline.core.cost import Cost, Costs
from paceline.costing import NOISY
from paceline.lab.gathering import Meter

KNOWN = 0.02  # seconds of a pass over one row; a row more takes half of that


def watched(
    monkeypatch: pytest.MonkeyPatch,
    taken: float,
    *,
    known: float = KNOWN,
    others: float = 0.0,
    noise: float = 1.0,
) -> tuple[str, Any]:
    """What is said after passes of one and of three rows that take so many times what is known; others: so
    many of two processors are busy for other programs meanwhile."""
    meters = iter([Meter(0.0, 0.0, 0.0, 0, 0, None), Meter(10.0, 10.0 * others, 0.0, 0, 0, None)])
    monkeypatch.setattr(Meter, "read", lambda *_: next(meters))
    monkeypatch.setattr(slowness, "logical_cores", lambda: 2)
    cost = Cost({256: {1: known, 2: 1.5 * known, 3: 2 * known, 4: 2.5 * known}}, noise)
    target = SimpleNamespace(on_pass=None, settings={"threads": 2})
    costs = Costs(cost)
    llm: Any = SimpleNamespace(policy=SimpleNamespace(costs=costs), target=target)
    watch = Slowness(llm)
    for rows in [1, 3] * MIN_PASSES:
        cost.observe(rows, 300, taken * cost.seconds(rows, 300))  # the policy's goes along
        if target.on_pass is not None:
            target.on_pass(rows, 300, taken * known * (1 + rows) / 2)
    said = watch.warning()
    assert costs.usual == (said == "")  # what such a run has taught is not kept
    return said, target.on_pass


@pytest.mark.parametrize("taken", [0.5, 1.0, 2.8])
def test_usual_passes_are_not_spoken_of(monkeypatch: pytest.MonkeyPatch, taken: float) -> None:
    assert watched(monkeypatch, taken, others=2.0)[0] == ""


def test_who_has_the_processors_is_said_of_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = watched(monkeypatch, 8.0, others=1.9)
    assert said == (
        "passes took 8.0 times what they are known to take here: other programs kept 1.9 of 2 processors "
        "busy, beside 2 threads of ours; end them, or leave them cores (-t): "
        "threads wait for the slowest among them"
    )


def test_slow_passes_without_a_cause_are_to_be_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = watched(monkeypatch, 8.0)
    assert said.endswith("and it is not seen why; paceline doctor --again measures that anew")


def test_costs_that_were_measured_on_a_busy_machine_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said, _ = watched(monkeypatch, 1.0, others=1.9, noise=NOISY)
    assert said.startswith(
        "the machine was busy while it was measured what passes cost: other programs kept 1.9"
    )
    assert watched(monkeypatch, 1.0, noise=NOISY)[0] == ""


def test_passes_that_are_short_anyway_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(monkeypatch, 8.0, known=0.001, others=2.0) == ("", None)


def test_few_passes_say_nothing_and_unknown_costs_are_no_measure() -> None:
    llm: Any = SimpleNamespace(policy=SimpleNamespace(), target=SimpleNamespace(on_pass=None))
    assert Slowness(llm).warning() == ""
