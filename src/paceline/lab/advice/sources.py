"""Where advice gets its facts from: kept costs, the memory's speed, earlier benches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paceline.core.cost import Costs
from paceline.core.errors import HistoryError, PacelineError
from paceline.engines.openers import Way
from paceline.lab.advice.estimate import Estimate, estimated, kept
from paceline.lab.advice.memory import available
from paceline.lab.advice.past import Past, of_drafters
from paceline.lab.advice.row import Known, Question
from paceline.machine.hardware import bandwidth
from paceline.machine.identity import cpu_name, fingerprint
from paceline.machine.models.facts import Facts

RUNS = 200  # of the history, the newest
ASSUMED = 20e9  # bytes/s, where the memory's speed cannot be measured


def known(
    target: Facts,
    question: Question,
    way: Mapping[str, Any],
    *,
    history: Path,
    note: Callable[[str], object],
    now: Mapping[Path, Costs] | None = None,
) -> Known:
    """way: how the models are run, the settings of a Way. history: the benches' file, which need not exist.
    note: told of what cannot be read or measured. now: what was measured just now, by path."""
    runs = _runs(history, note)
    machine = {"processor": cpu_name(), "threads": way["threads"]}
    measured_now = now or {}

    @cache  # measured only where passes were not
    def speed() -> float:
        try:
            return bandwidth.measured(way["threads"])
        except PacelineError as error:
            note(f"the memory's speed is not known: {error}; {ASSUMED / 1e9:.0f} GB/s are assumed")
            return ASSUMED

    def costs(facts: Facts, role: str) -> Estimate:
        if not facts.path.is_file():
            return estimated(facts, role, speed(), way["threads"])
        found = measured_now.get(facts.path)
        if found is not None and role == "target":
            return Estimate.measured(found.target, found.step)
        if found is not None and found.draft is not None:
            return Estimate.measured(found.draft)
        return kept(Way(facts.path, way), role) or estimated(facts, role, speed(), way["threads"])

    def past(facts: Facts | None, drafter: str) -> Past | None:
        if not runs or not target.path.is_file():
            return None
        # With a draft model, auto is what `paceline run` does.
        drafters = (drafter,) if facts is None else (drafter, "auto")
        draft = None if facts is None else fingerprint(facts.path)
        return of_drafters(runs, fingerprint(target.path), draft, drafters, question.task, machine)

    return Known(costs, past, available(gpus=bool(way["gpu_layers"])))


def _runs(path: Path, note: Callable[[str], object]) -> list[Any]:
    """Nothing is made where nothing was measured yet."""
    if not path.is_file():
        return []
    from paceline.lab.bench.history import History

    try:
        with History(path) as history:
            return history.runs(RUNS)
    except HistoryError as error:
        note(str(error))
        return []
