"""What was measured as best for a model, on disk: its self-speculative view, and its lossy choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from paceline.system import home
from paceline.system.home import Warn

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
