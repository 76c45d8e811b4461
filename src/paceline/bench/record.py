"""Records of a bench: measurements by item and round, a result for each system, and the whole record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from paceline.bench.plan import BenchPlan
from paceline.bench.system import BenchAnswer

Measurement = dict[str, Any]
Status = Literal["running", "done", "interrupted", "failed"]


MEASURES = (
    "n_tokens", "first", "steps", "drafted", "accepted", "rejected", "draft_seconds", "decode_seconds",
    "own_speed",
)  # fmt: skip


def measurement(system: str, answer: BenchAnswer) -> Measurement:
    """Return the measurement of an answer, with the names of `BenchAnswer`. tokens, seconds: of decoding."""
    values = {name: getattr(answer, name) for name in MEASURES}
    return {"system": system, "tokens": answer.decoded, "seconds": answer.decoding, **values}


@dataclass(frozen=True)
class ItemMeasurements:
    """The measurements of one item in one round, and the outcomes of greedy answers, by system."""

    round: int
    item: str
    category: str
    measurements: Mapping[str, Measurement]
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> ItemMeasurements:
        return cls(**{f.name: stored[f.name] for f in fields(cls)})


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BenchResult:
    """A row of the results, with None for measures that a system does not report and for speeds of lossy
    output.

    category: of the items; "" for all. verdict: of the lossless gate, as text. n_tokens: decoded in all
    rounds.
    speed, speed_sd: tokens/s of decoding, mean and standard deviation over the rounds.
    speedup: over plain decoding. clear: the speedup differs from 1 by more than chance.
    ttft, tpot: mean seconds to the first token and for each later one.
    draft_share: of decoding time. memory: bytes.
    acceptance: probability that a drafted token is accepted after its predecessors."""

    system: str
    category: str
    lossless: bool
    verdict: str
    items: int
    rounds: int
    n_tokens: int
    speed: float | None = None
    speed_sd: float | None = None
    speedup: Interval | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    acceptance: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    draft_share: float | None = None
    memory: int | None = None
    own_speed: float | None = None
    clear: bool | None = None


@dataclass
class BenchRecord:
    """The results of a bench.

    run: its number in the history. skipped: reasons of items that were not measured. reading: tokens and
    seconds of prefills. lost: error of a failed write to the history."""

    plan: BenchPlan
    provenance: dict[str, Any] = field(default_factory=dict)
    status: Status = "running"
    run: int | None = None
    results: list[BenchResult] = field(default_factory=list)
    groups: list[ItemMeasurements] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reading: list[tuple[int, float]] = field(default_factory=list)
    lost: str = ""

    @property
    def prompt_speed(self) -> float | None:
        """Tokens/s of prefill."""
        seconds = sum(took for _, took in self.reading)
        return sum(n for n, _ in self.reading) / seconds if seconds > 0 else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "status": self.status,
            "plan": self.plan.as_dict(),
            "results": [asdict(result) for result in self.results],
            "skipped": self.skipped,
            "prompt_speed": self.prompt_speed,
            "measurements": [
                {"round": group.round, "item": group.item, "category": group.category} | one
                for group in self.groups
                for one in group.measurements.values()
            ],
            "provenance": self.provenance,
        }
