"""Measurements of a model on disk: pass costs, a JSON file per model, build of the engine, and settings; the
best self-speculative view; lossy choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.speculative.policy.costs import DecodingCosts, PassCosts, implausibility
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


VIEWS, LOSSY = "views", "lossy"  # folders


@dataclass(frozen=True)
class CachedView:
    """A search result. words: the view's option. agreement: share of `judged` held-out tokens that match.
    share: time of a token relative to the model's. method, tries: of the search."""

    words: str
    agreement: float
    share: float
    judged: int
    method: str
    tries: int


@dataclass(frozen=True)
class Recommendation:
    """A measured choice. lossy: as in `load`, "" if none is good enough. effect: what it changes."""

    lossy: str
    effect: str


def load_view(model: str, warn: Warn) -> CachedView | None:
    """Return the cached view of a model, by the fingerprint of its weights, or None."""
    remedy = "search again (paceline views search)"
    return home.load_record(VIEWS, {"model": model}, lambda found: CachedView(**found["view"]), warn, remedy)


def store_view(model: str, view: CachedView, warn: Warn) -> bool:
    """Write a view. If that fails, call `warn` and return False."""
    return home.write_record(VIEWS, {"model": model}, {"view": asdict(view)}, warn, "the view is not kept")


def load_recommendation(choice: str, models: Mapping[str, str], warn: Warn) -> Recommendation | None:
    """Return the stored recommendation, or None. choice: the name of the lossy choice.
    models: fingerprints of weights, of the target and of the draft if the choice depends on it."""
    key, remedy = {"choice": choice, **models}, f"measure again (paceline {choice})"
    return home.load_record(LOSSY, key, lambda record: Recommendation(**record["found"]), warn, remedy)


def store_recommendation(choice: str, models: Mapping[str, str], found: Recommendation, warn: Warn) -> bool:
    """Write a recommendation. If that fails, call `warn` and return False."""
    key = {"choice": choice, **models}
    return home.write_record(LOSSY, key, {"found": asdict(found)}, warn, "the recommendation is not kept")
