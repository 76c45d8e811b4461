"""Measured costs on the disk: one JSON file for each model, build of the engine, and way to run it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from paceline.speculative.errors import UsageError
from paceline.speculative.policy.cost_cells import fault
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
    return home.kept_at("costs", key)


def recall(key: Key, warn: Warn, fastest: Callable[[PassCosts], float] = lambda _: 0.0) -> CachedCosts | None:
    """What was kept; None where nothing was, or where it cannot be used or believed: then `warn` is told.
    fastest: what plausible.py calls so, of a model with such costs."""
    try:
        said = home.recall("costs", key)
        costs = DecodingCosts.read({"target": said["cost"], "step": said["step"]})
        seconds, depths, rows = (said["effort"][name] for name in ("seconds", "depths", "rows"))
        effort = MeasurementEffort(float(seconds), tuple(map(int, depths)), tuple(map(int, rows)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warn(f"{path_of(key)}: cannot be read ({error.strerror}); costs are measured again")
        return None
    except (ValueError, TypeError, KeyError, UsageError):
        warn(f"{path_of(key)}: holds no costs of this model; they are measured again")
        return None
    if wrong := fault(costs.target.table, fastest(costs.target)):
        warn(f"{path_of(key)}: costs that no machine has ({wrong}); they are measured again")
        return None
    return CachedCosts(costs.target, costs.step, effort)


def keep(key: Key, kept: CachedCosts, warn: Warn) -> bool:
    """Where the disk refuses, `warn` is told, and it is False."""
    found = {"cost": kept.cost.as_dict(), "step": kept.step, "effort": asdict(kept.effort)}
    return home.keep("costs", key, found, warn, "costs are measured again next time")
