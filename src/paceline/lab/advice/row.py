"""What is asked for advice, what it needs to know, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from paceline.lab.advice.estimate import Estimate
from paceline.lab.advice.past import Past
from paceline.lab.advice.prior import ANY, Range
from paceline.machine.models.facts import Facts

MODEL, COPIER, DOWNLOAD = "model", "suffix", "download"
PREDICTED, PRIOR = "predicted", "prior"
TARGET = ("name", "family", "parameters", "quantisation", "size")  # what is said of it
DEPTH = 1024  # tokens of context that costs are compared after; half of the context where that is less


@dataclass(frozen=True)
class Question:
    """task: of prior.TASKS. n_ctx: tokens of context. cache_type: of keys and values."""

    task: str = ANY
    n_ctx: int = 4096
    cache_type: str = "f16"

    @property
    def depth(self) -> int:
        return max(1, min(DEPTH, self.n_ctx // 2))


@dataclass(frozen=True)
class Candidate:
    """reference: what a user types for it. verdict: machine/fit/compatibility.py's."""

    facts: Facts
    reference: str
    verdict: str


@dataclass(frozen=True)
class Known:
    """What is known of the machine. costs: of a model as "target" or "draft". past: what a bench found of a
    drafter, with a draft model or without. available: bytes of memory."""

    costs: Callable[[Facts, str], Estimate]
    past: Callable[[Facts | None, str], Past | None]
    available: int


@dataclass(frozen=True)
class Row:
    """One way to draft. drafter: MODEL, COPIER or DOWNLOAD. n_draft, width: of the drafts that are worth
    verifying at the likely acceptance; 0 where plain decoding is as fast. share: of the steps that a copier
    has a guess at. acceptance_from: PRIOR or "bench 12". costs_from: measured or estimated. speedup_from:
    PREDICTED or "bench 12". token: seconds of a drafted one. needed: the least acceptance that gains
    anything, None where none does. break_even: by K, of drafts of just that length (theory.break_even).
    memory: bytes of target and draft."""

    drafter: str
    reference: str
    verdict: str
    size: int
    parameters: int | None
    quantisation: str
    n_draft: int
    width: int
    acceptance: Range
    acceptance_from: str
    share: Range | None
    speedup: Range
    speedup_from: str
    costs_from: str
    token: float
    needed: float | None
    break_even: dict[int, float | None]
    memory: int
    memory_known: bool
    fits: bool
    why: str = ""
    caveat: str = ""
    source: str = ""


@dataclass(frozen=True)
class Advice:
    """rows: the best first; those of another vocabulary, and those there is no memory for, come last.
    downloads: known drafts that are not here. refused: why nothing can be drafted at all."""

    target: Facts
    question: Question
    rows: tuple[Row, ...]
    downloads: tuple[Row, ...]
    costs_from: str
    two_rows: float
    available: int
    refused: str = ""

    def as_dict(self) -> dict[str, Any]:
        target = self.target
        return {
            "target": {"path": str(target.path)} | {name: getattr(target, name) for name in TARGET},
            **asdict(self.question),
            "costs_from": self.costs_from,
            "two_rows": self.two_rows,
            "available": self.available,
            "refused": self.refused,
            "drafts": [asdict(row) for row in self.rows],
            "downloads": [asdict(row) for row in self.downloads],
        }
