"""Sweeps: the points at which a bench is repeated, each with plain decoding beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.drafters import DATASTORE, DRAFT, DRAFTERS
from paceline.core.errors import UsageError
from paceline.lab.bench.record import Result
from paceline.machine.hardware.threads import logical_cores
from paceline.zoo.quantize import check_ftype

GO_ON = 0.6  # longer drafts are worth a try while more of the drafted tokens than this are accepted


@dataclass(frozen=True)
class Point:
    """What is changed at a point. at: as it is shown. models: of the models' loading. drafting: of every
    method. temperature: of the target. draft_type: weights that the draft is quantised to. depth: tokens of
    context. batch: requests at once."""

    at: dict[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    drafting: dict[str, Any] = field(default_factory=dict)
    temperature: float | None = None
    draft_type: str = ""
    depth: int = 0
    batch: int = 1


@dataclass(frozen=True)
class Sweep:
    """name: what varies. values: in order. open_ended: the values after the first are only tried while the
    drafts before them were accepted well."""

    name: str = ""
    values: tuple[Any, ...] = (None,)
    open_ended: bool = False

    @property
    def points(self) -> list[Point]:
        """All that there may be."""
        return [KINDS[self.name].point(value) for value in self.values] if self.name else [Point()]

    def after(self, done: Sequence[tuple[Point, Sequence[Result]]]) -> Point | None:
        """The next point, given the results at those before it; None at the end."""
        points = self.points
        if len(done) == len(points):
            return None
        if done and self.open_ended:
            last = done[-1][1]
            categories = {result.category for result in last}
            rates = [
                r.acceptance_rate
                for r in last
                if r.lossless and r.acceptance_rate is not None and (not r.category or len(categories) == 1)
            ]
            if max(rates, default=0.0) <= GO_ON:
                return None
        return points[len(done)]


@dataclass(frozen=True)
class Kind:
    """What a sweep of this name varies. values: by default. read: one value from text."""

    point: Callable[[Any], Point]
    read: Callable[[str], Any]
    values: Callable[[], Sequence[Any]]
    low: float = 0.0


def _threads() -> list[int]:
    cores = logical_cores()
    return sorted({*(n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n < cores), cores})


KINDS = {
    "k": Kind(lambda k: Point({"n_draft": k}, drafting={"n_draft": k}), int, lambda: (8, 12, 16, 24), 1),
    "temp": Kind(lambda t: Point({"temp": t}, temperature=t), float, lambda: (0.0, 0.3, 0.5, 0.7, 1.0)),
    "draft-temp": Kind(
        lambda t: Point({"draft_temp": t}, drafting={"temperature": t}),
        float,
        lambda: (0.0, 0.3, 0.5, 0.7, 1.0),
    ),
    "draft-type": Kind(
        lambda name: Point({"draft_type": name}, draft_type=name),
        check_ftype,
        lambda: ("F16", "Q8_0", "Q4_0"),
    ),
    "threads": Kind(lambda n: Point({"threads": n}, models={"threads": n}), int, _threads, 1),
    "depth": Kind(lambda n: Point({"depth": n}, depth=n), int, lambda: (64, 256, 512, 1024)),
    "batch": Kind(
        lambda n: Point({"batch": n}, models={"sessions": n}, batch=n), int, lambda: (1, 2, 4, 8), 1
    ),
}
DRAFTER = "drafter"  # varies the methods, at one point


def parse(text: str) -> Sweep:
    """NAME, or NAME=V1,V2,...; "" and "drafter" have one point. Raises UsageError."""
    name, equals, given = text.partition("=")
    if not text or text == DRAFTER:
        return Sweep()
    if name not in KINDS:
        raise UsageError(f"--sweep {name}: choose from {', '.join([*KINDS, DRAFTER])}")
    kind = KINDS[name]
    if not equals:
        return Sweep(name, tuple(kind.values()), open_ended=name == "k")
    values = []
    for one in given.split(","):
        try:
            value = kind.read(one.strip())
        except ValueError:
            raise UsageError(f"--sweep {text}: {one.strip()!r} is no number") from None
        if not isinstance(value, str) and not kind.low <= value < 1e9:
            raise UsageError(f"--sweep {text}: {value} must be at least {kind.low:g}")
        values.append(value)
    if len(set(values)) < len(values):
        raise UsageError(f"--sweep {text}: a value is there twice")
    return Sweep(name, tuple(values))


def every_drafter(has_draft: bool, has_stores: bool) -> str:
    """The methods of `--sweep drafter`: each drafter that can be made alone, then those of `auto` one after
    the other."""
    available = [what for what, there in ((DRAFT, has_draft), (DATASTORE, has_stores)) if there]
    drafting = [row for row in DRAFTERS.values() if row.name != "none"]
    rows = [row for row in drafting if row.optional or not row.missing(available)]
    together = "+".join(row.name for row in rows if row.in_auto)
    return ",".join(["plain", *(row.name for row in rows), together])
