"""The lossy choices measured as good enough for a model, on disk: one JSON file per choice and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from paceline.system import home
from paceline.system.home import Warn

FOLDER = "lossy"


@dataclass(frozen=True)
class Recommendation:
    """A measured choice. lossy: as in `load`, "" if none is good enough. effect: what it changes."""

    lossy: str
    effect: str


def load_recommendation(choice: str, models: Mapping[str, str], warn: Warn) -> Recommendation | None:
    """Return the stored recommendation, or None. choice: the name of the lossy choice.
    models: fingerprints of weights, of the target and of the draft if the choice depends on it."""
    remedy = f"measure again (paceline {choice})"
    key = {"choice": choice, **models}
    return home.load_record(FOLDER, key, lambda record: Recommendation(**record["found"]), warn, remedy)


def store_recommendation(choice: str, models: Mapping[str, str], found: Recommendation, warn: Warn) -> bool:
    """Write a recommendation. If that fails, call `warn` and return False."""
    key = {"choice": choice, **models}
    return home.write_record(FOLDER, key, {"found": asdict(found)}, warn, "the recommendation is not kept")
