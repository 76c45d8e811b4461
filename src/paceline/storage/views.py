"""The best self-speculative view of each model, on disk: one JSON file per model's weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from paceline.system import home
from paceline.system.home import Warn

FOLDER = "views"


@dataclass(frozen=True)
class CachedView:
    """A search result. words: the view's option. agreement: share of `judged` held-out tokens that match.

    share: time of a token relative to the model's. method, tries: of the search.
    """

    words: str
    agreement: float
    share: float
    judged: int
    method: str
    tries: int


def load_view(model: str, warn: Warn) -> CachedView | None:
    """Return the cached view of a model, by the fingerprint of its weights, or None."""
    remedy = "search again (paceline views search)"
    return home.load_record(
        FOLDER, {"model": model}, lambda record: CachedView(**record["view"]), warn, remedy
    )


def store_view(model: str, view: CachedView, warn: Warn) -> bool:
    """Write a view. If that fails, call `warn` and return False."""
    return home.write_record(FOLDER, {"model": model}, {"view": asdict(view)}, warn, "the view is not kept")
