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


def recall(model: str, warn: Warn) -> CachedView | None:
    """model: a fingerprint of the weights. None where nothing is kept; `warn` is told of what is damaged."""
    key = {"model": model}
    try:
        said = home.recall(FOLDER, key)["view"]
        return CachedView(
            words=str(said["words"]),
            agreement=float(said["agreement"]),
            share=float(said["share"]),
            judged=int(said["judged"]),
            method=str(said["method"]),
            tries=int(said["tries"]),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        warn(f"{home.kept_at(FOLDER, key)}: cannot be read ({error.strerror})")
    except (ValueError, TypeError, KeyError):
        warn(
            f"{home.kept_at(FOLDER, key)}: holds no view of this model; search again (paceline views search)"
        )
    return None


def keep(model: str, view: CachedView, warn: Warn) -> bool:
    """Where the disk refuses, `warn` is told, and it is False."""
    return home.keep(FOLDER, {"model": model}, {"view": asdict(view)}, warn, "the view is not kept")
