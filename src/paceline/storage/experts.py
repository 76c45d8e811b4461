"""The number of experts measured as good enough for a mixture, on disk: one JSON file per model's weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from paceline.system import home
from paceline.system.home import Warn

FOLDER = "experts"


@dataclass(frozen=True)
class MeasuredExperts:
    """A recommendation. experts: of a token, 0 for the model's own number. rise: of perplexity, at most
    `bound`. agreement: share of likeliest tokens that are the whole model's. tokens: of the text."""

    experts: int
    rise: float
    bound: float
    agreement: float
    tokens: int


def load_experts(model: str, warn: Warn) -> MeasuredExperts | None:
    """Return the stored recommendation, by the fingerprint of the weights, or None."""
    remedy = "measure again (paceline experts)"
    return home.load_record(
        FOLDER, {"model": model}, lambda record: MeasuredExperts(**record["experts"]), warn, remedy
    )


def store_experts(model: str, found: MeasuredExperts, warn: Warn) -> bool:
    """Write a recommendation. If that fails, call `warn` and return False."""
    return home.write_record(
        FOLDER, {"model": model}, {"experts": asdict(found)}, warn, "the number of experts is not kept"
    )
