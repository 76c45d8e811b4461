"""The parts of models that were found to draft best for them: one JSON file for each model's weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from paceline.system import home
from paceline.system.home import Warn

FOLDER = "views"


@dataclass(frozen=True)
class CachedView:
    """words: which view, as the command line has it. agreement: the share of tokens that it guesses right
    behind the model's own text, of `judged` that took no part in the search; share: of the model's time that
    one of its tokens takes; method: how it was found, of so many `tries`."""

    words: str
    agreement: float
    share: float
    judged: int
    method: str
    tries: int


def load_view(model: str, warn: Warn) -> CachedView | None:
    """Return the view that was kept of a model, by the fingerprint of its weights, or None."""
    otherwise = "search again (paceline views search)"
    return home.load_record(
        FOLDER, {"model": model}, lambda value: CachedView(**value["view"]), warn, otherwise
    )


def store_view(model: str, view: CachedView, warn: Warn) -> bool:
    """Where the disk refuses, `warn` is told, and it is False."""
    return home.write_record(FOLDER, {"model": model}, {"view": asdict(view)}, warn, "the view is not kept")
