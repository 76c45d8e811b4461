"""Models that are nowhere, for advice about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.cost import Cost
from paceline.lab.advice.estimate import MEASURED, Estimate
from paceline.lab.advice.past import Past
from paceline.lab.advice.row import Known
from paceline.machine.models.facts import Facts


def facts(name: str = "target", family: str = "kin-1", billions: float = 8.0, **more: Any) -> Facts:
    """At Q8_0, if nothing else is said."""
    parameters = round(billions * 1e9)
    values: dict[str, Any] = {
        "files": (Path(f"/models/{name}.gguf"),),
        "format": "gguf",
        "name": name,
        "arch": "llama",
        "family": family,
        "parameters": parameters,
        "quantisation": "Q8_0",
        "size": round(parameters * 8.5 / 8),
        "n_ctx": 8192,
        "kv_bytes": 1000,
    }
    return Facts(**values | more)


def passes(per_row: float = 0.0, one: float = 1.0, source: str = MEASURED) -> Estimate:
    """Seconds of a pass: one, and per_row for each row beyond the first."""
    cost = Cost.flat(one, per_row)
    return Estimate(cost, cost, cost, source, step=0.0)


def known(
    target: Estimate | None = None,
    drafts: dict[str, float] | None = None,
    past: dict[str | None, Past] | None = None,
    available: int = 10**12,
) -> Known:
    """drafts: seconds of a token, by name; a hundredth of the target's where not named. past: by the
    draft's name, or None for what copies."""
    target = target or passes()
    costs, found = drafts or {}, past or {}

    def of(model: Facts, role: str) -> Estimate:
        if role == "target":
            return target
        return passes(one=costs.get(model.name, target.likely.seconds(1, 0) / 100))

    def before(model: Facts | None, drafter: str) -> Past | None:
        return found.get(None if model is None else model.name)

    return Known(of, before, available)
