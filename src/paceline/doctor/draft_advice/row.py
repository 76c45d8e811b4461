"""What is asked for advice, what it needs to know, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.models.headers.facts import ModelFacts
from paceline.speculative.errors import UsageError
from paceline.speculative.policy.cost_model import DecodingCosts

MODEL, NO_MODEL, DOWNLOAD = "model", "suffix", "download"
TARGET = ("name", "family", "parameters", "quantisation", "size")  # what is said of it
CONTEXT_LENGTH = (
    1024  # tokens of context that costs are compared after; half of the context where that is less
)
ANY_TASK = "any"
# The suite that stands for a task, where drafts are measured on it.
TASKS: Mapping[str, str] = {
    ANY_TASK: "real",
    "code": "real-code",
    "edit": "real-edit",
    "json": "real-json",
    "agent": "real-agent",
    "math": "real-maths",
    "summary": "real-grounded",
    "chat": "real-chat",
    "quote": "quote",
    "prose": "prose",
}


@dataclass(frozen=True)
class AdviceRequest:
    """task: of TASKS. n_ctx: tokens of context. cache_type: of keys and values. Raises UsageError."""

    task: str = ANY_TASK
    n_ctx: int = 4096
    cache_type: str = "f16"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise UsageError(f"--task {self.task}: choose from {', '.join(TASKS)}")

    @property
    def depth(self) -> int:
        return max(1, min(CONTEXT_LENGTH, self.n_ctx // 2))


@dataclass(frozen=True)
class DraftCandidate:
    """reference: what a user types for it. verdict: models/compatibility/check.py's."""

    facts: ModelFacts
    reference: str
    verdict: str


@dataclass(frozen=True)
class Measured:
    """What drafts of one way gained on this machine.

    speedup: over plain decoding; low, high: its 95% interval, where it was measured often enough for one.
    acceptance: of each drafted token; None where too few were drafted.
    source: "bench 12", or "measured" where it was just now.
    """

    speedup: float
    low: float | None
    high: float | None
    acceptance: float | None
    source: str


@dataclass(frozen=True)
class MeasuredFacts:
    """What is known of the machine.

    costs: of target and draft, None where the passes of either were never measured.
    measured: of a draft model; None for what copies.
    available: bytes of memory.
    """

    costs: Callable[[ModelFacts | None], DecodingCosts | None]
    measured: Callable[[ModelFacts | None], Measured | None]
    available: int


@dataclass(frozen=True)
class DraftOption:
    """One way to draft.

    drafter: MODEL, COPIER or DOWNLOAD.
    kin: whether the draft's family is the target's.
    token: what a drafted token costs, as a share of the target's pass; None where it was not measured.
    needed: the least acceptance that gains anything: None where it was not measured, above 1 where none does.
    memory: bytes of target and draft.
    """

    drafter: str
    reference: str
    verdict: str
    size: int
    parameters: int | None
    quantisation: str
    kin: bool
    token: float | None
    needed: float | None
    measured: Measured | None
    memory: int
    memory_known: bool
    fits: bool
    why: str = ""
    caveat: str = ""
    source: str = ""


@dataclass(frozen=True)
class DraftAdvice:
    """rows: the best first; those of another vocabulary, and those there is no memory for, come last.
    downloads: known drafts that are not here. two_rows: what a pass over two rows costs, over one; None where
    it was not measured. refused: why nothing can be drafted at all."""

    target: ModelFacts
    question: AdviceRequest
    rows: tuple[DraftOption, ...]
    downloads: tuple[DraftOption, ...]
    two_rows: float | None
    available: int
    refused: str = ""

    def as_dict(self) -> dict[str, Any]:
        target = self.target
        return {
            "target": {"path": str(target.path)} | {name: getattr(target, name) for name in TARGET},
            **asdict(self.question),
            "two_rows": self.two_rows,
            "available": self.available,
            "refused": self.refused,
            "drafts": [asdict(row) for row in self.rows],
            "downloads": [asdict(row) for row in self.downloads],
        }
