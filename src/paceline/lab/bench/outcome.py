"""What a whole bench came to, as it is printed and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.lab.bench.history import Status
from paceline.lab.bench.measurement import Group
from paceline.lab.bench.plan import Plan
from paceline.lab.bench.record import Result


@dataclass
class Record:
    """What a bench came to. groups: all measurements. run: its number in the history. skipped:
    why which items were not asked. reading: tokens and seconds of prompts that were read. lost: why the
    history could not be written any more."""

    plan: Plan
    provenance: dict[str, Any] = field(default_factory=dict)
    status: Status = "running"
    run: int | None = None
    results: list[Result] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reading: list[tuple[int, float]] = field(default_factory=list)
    lost: str = ""

    @property
    def prompt_speed(self) -> float | None:
        """Tokens/s of reading prompts."""
        seconds = sum(took for _, took in self.reading)
        return sum(n for n, _ in self.reading) / seconds if seconds > 0 else None

    def measurements(self) -> Iterator[dict[str, Any]]:
        """Every one: of an item, in a round, by a system."""
        for group in self.groups:
            told = {"round": group.round, "item": group.item, "category": group.category}
            yield from (told | asdict(one) for one in group.measurements.values())

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "status": self.status,
            "plan": self.plan.as_dict(),
            "results": [asdict(result) for result in self.results],
            "skipped": self.skipped,
            "prompt_speed": self.prompt_speed,
            "measurements": list(self.measurements()),
            "provenance": self.provenance,
        }
