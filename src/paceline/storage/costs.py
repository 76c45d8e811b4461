"""Measured pass costs on disk: one JSON file per model, build of the engine, and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.speculative.policy.cost_measurement import implausibility
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.system import home
from paceline.system.home import Key, Warn

FOLDER = "costs"


@dataclass(frozen=True)
class MeasurementEffort:
    """The effort of a measurement: seconds, context lengths (depths) and batch tokens (rows)."""

    seconds: float = 0.0
    depths: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()

    def covers(self, other: MeasurementEffort) -> bool:
        """Return True if a measurement with effort `other` would add nothing."""
        covered = {*self.depths} >= {*other.depths} and {*self.rows} >= {*other.rows}
        return covered and self.seconds >= other.seconds


NO_EFFORT = MeasurementEffort()


@dataclass
class CachedCosts:
    """The costs of one model. step: see DecodingCosts. effort: of the measurement that began them.
    doubt: why they must not be stored; "" if they are sound."""

    cost: PassCosts
    step: float = 0.0
    effort: MeasurementEffort = NO_EFFORT
    doubt: str = ""


def load(key: Key, warn: Warn) -> CachedCosts | None:
    """Return the cached costs, or None. `warn` is called about damaged and implausible ones."""
    cached = home.load_record(FOLDER, key, _read, warn, "costs are measured again")
    if cached is not None and (reason := implausibility(cached.cost.table)):
        path = home.record_path(FOLDER, key)
        warn(f"{path}: costs that no machine has ({reason}); they are measured again")
        return None
    return cached


def _read(data: Mapping[str, Any]) -> CachedCosts:
    costs = DecodingCosts.read({"target": data["cost"], "step": data["step"]})
    seconds, depths, rows = (data["effort"][name] for name in ("seconds", "depths", "rows"))
    effort = MeasurementEffort(float(seconds), tuple(map(int, depths)), tuple(map(int, rows)))
    return CachedCosts(costs.target, costs.step, effort)


def store(key: Key, cached: CachedCosts, warn: Warn) -> bool:
    """Write the costs. If that fails, call `warn` and return False."""
    record = {"cost": cached.cost.as_dict(), "step": cached.step, "effort": asdict(cached.effort)}
    return home.write_record(FOLDER, key, record, warn, "costs are measured again next time")
