"""A learned probability that a drafted token is accepted, from more than its own probability.

It sees how a draft's distribution looks: its first and second probability, its entropy, the position in the
draft, and the score of the token before. Others stop drafts by such a probability alone (AdaEDL,
arXiv:2410.18351; SpecDec++, arXiv:2405.19715); here it replaces the score that the policy calibrates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.config import KIND_KEY, VERSION, check_version
from paceline.heads.entries import Entries, prefix_errors
from paceline.system.atomic import write_json
from paceline.system.strict_json import parse_json

KIND, FILE = "confidence", "config.json"
MIN_P = 1e-6
MAX_WEIGHT = 1e6
NAMES = ("bias", "logit p1", "log p2", "entropy", "depth", "logit of the score before", "p1 squared")
Vector = NDArray[np.float64]


def row_features(p: NDArray[Any], depth: int, before: float) -> Vector:
    """Return what the confidence sees of a row.
    p: probabilities of the draft's tokens, in any order. depth: of the token, from 0. before: the score of
    the token before, 1 at the root."""
    first = float(p.max())
    second = float(np.partition(p, -2)[-2]) if len(p) > 1 else 0.0
    positive = p[p > MIN_P].astype(np.float64)
    entropy = float(-(positive * np.log(positive)).sum())
    return np.array(
        [1.0, logit(first), np.log(max(second, MIN_P)), entropy, np.log1p(depth), logit(before), first**2]
    )


def logit(p: float) -> float:
    p = min(max(p, MIN_P), 1.0 - MIN_P)
    return float(np.log(p / (1.0 - p)))


@dataclass(frozen=True)
class Confidence:
    """A logistic regression over `row_features`. draft: the draft model's name. model: its fingerprint."""

    draft: str
    model: str
    weights: tuple[float, ...]

    def probability(self, p: NDArray[Any], depth: int, before: float) -> float:
        z = float(np.dot(row_features(p, depth, before), self.weights))
        return 1.0 / (1.0 + float(np.exp(-max(-50.0, min(50.0, z)))))

    def write(self, folder: Path, card: Mapping[str, Any]) -> None:
        """Write config.json. Raises OSError."""
        data = {
            KIND_KEY: KIND,
            "version": VERSION,
            "draft": self.draft,
            "model": self.model,
            "weights": dict(zip(NAMES, self.weights, strict=True)),
            "card": dict(card),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / FILE, data)


def read_confidence(folder: Path) -> Confidence | None:
    """Return the confidence in a folder; None for another folder. Raises ModelError for a damaged one."""
    try:
        data = parse_json((folder / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get(KIND_KEY) != KIND:
        return None
    with prefix_errors(folder):
        entries = Entries(data, FILE)
        check_version(entries)
        numbers = entries.part("weights")
        weights = tuple(numbers.number(name, -MAX_WEIGHT, MAX_WEIGHT) for name in NAMES)
        return Confidence(entries.text("draft"), entries.text("model"), weights)
