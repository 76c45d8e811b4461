"""Measured costs on the disk: one JSON file for each model, build of the engine, and way to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.speculative.policy.cost_cells import implausibility
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts
from paceline.system import home
from paceline.system.home import Key, Warn


@dataclass(frozen=True)
class MeasurementEffort:
    """Seconds spent on so many depths and rows."""

    seconds: float = 0.0
    depths: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def covers(self, other: MeasurementEffort) -> bool:
        """Whether `other` would find nothing new."""
        return (
            self.seconds >= other.seconds
            and set(self.depths) >= set(other.depths)
            and set(self.rows) >= set(other.rows)
        )


NO_EFFORT = MeasurementEffort()


@dataclass
class CachedCosts:
    """What is known of one model. step: see DecodingCosts. effort: what it was measured with; more need not
    be there, since what takes too long is left out."""

    cost: PassCosts
    step: float = 0.0
    effort: MeasurementEffort = NO_EFFORT


def path_of(key: Key) -> Path:
    """Where the costs are kept of what `key` tells."""
    return home.record_path("costs", key)


def load(key: Key, warn: Warn) -> CachedCosts | None:
    """Return what was kept, or None; of what cannot be used or believed `warn` is told."""
    found = home.load_record("costs", key, _read, warn, "costs are measured again")
    if found is not None and (wrong := implausibility(found.cost.table)):
        warn(f"{path_of(key)}: costs that no machine has ({wrong}); they are measured again")
        return None
    return found


def _read(data: Mapping[str, Any]) -> CachedCosts:
    costs = DecodingCosts.read({"target": data["cost"], "step": data["step"]})
    seconds, depths, rows = (data["effort"][name] for name in ("seconds", "depths", "rows"))
    effort = MeasurementEffort(float(seconds), tuple(map(int, depths)), tuple(map(int, rows)))
    return CachedCosts(costs.target, costs.step, effort)


def store(key: Key, cached: CachedCosts, warn: Warn) -> bool:
    """Where the disk refuses, `warn` is told, and it is False."""
    found = {"cost": cached.cost.as_dict(), "step": cached.step, "effort": asdict(cached.effort)}
    return home.write_record("costs", key, found, warn, "costs are measured again next time")
