"""What a bench says before it starts, and how long it still takes while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.text import Text

from paceline.cli.interrupts import Interrupts
from paceline.cli.progress import bars
from paceline.core.printable import printable

if TYPE_CHECKING:
    from paceline.lab.bench.outlook import Outlook

MOMENT = 10.0  # seconds
TRUST = 20.0  # seconds of work that the forecast weighs as much as


def announcement(outlook: Outlook) -> str:
    """In a line: what will be done, about how long it takes, and how to have it all; "" where nothing is left
    out and nobody has to wait."""
    if outlook.seconds < MOMENT and outlook.items == outlook.of:
        return ""
    of = f" of {outlook.of:,}" if outlook.items < outlook.of else ""
    tokens = f" of up to {outlook.tokens} tokens" if outlook.tokens else ""
    points = f", {outlook.points} points" if outlook.points > 1 else ""
    said = (
        f"{printable(outlook.suite)}: {outlook.items:,}{of} {_s(outlook.of, 'item')}{tokens}, "
        f"{outlook.systems} {_s(outlook.systems, 'method')}, "
        f"{outlook.rounds} {_s(outlook.rounds, 'round')}{points}: about {duration(outlook.seconds)}"
    )
    if outlook.full is None or outlook.items == outlook.of:
        return said
    return f"{said} (all of it, in five rounds, with --full: about {duration(outlook.full)})"


def _s(n: int, word: str) -> str:
    return word + "s" * (n != 1)


def duration(seconds: float) -> str:
    """To two digits or so: nobody knows it better."""
    if seconds < MOMENT:
        return "a few seconds"
    if seconds < 90:
        return f"{round(seconds, -1):.0f} seconds"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 36_000 else f"{seconds / 3600:.0f} hours"


class Left:
    """How long all the work still takes: the forecast, corrected by how far it was off up to now. total:
    seconds that are forecast; 0 where nothing is."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.total = self._done = 0.0
        self._began = self._last = clock()

    def begin(self, total: float) -> None:
        self.total, self._began = total, self._clock()
        self._last = self._began

    def did(self, seconds: float) -> None:
        """seconds: what was expected of the step that is done."""
        self._done += seconds
        self._last = self._clock()

    @property
    def seconds(self) -> float | None:
        """None where there is no forecast."""
        if not self.total:
            return None
        pace = (self._last - self._began + TRUST) / (self._done + TRUST)
        since = self._clock() - self._last
        return max(0.0, (self.total - self._done) * pace - since)


class LeftColumn(ProgressColumn):
    max_refresh = 0.5

    def __init__(self, left: Left) -> None:
        super().__init__()
        self._left = left

    def render(self, task: Task) -> Text:
        seconds = self._left.seconds
        if seconds is None:
            seconds = task.time_remaining
        if seconds is None:
            return Text("-:--:--", style="progress.remaining")
        whole = round(seconds)
        said = f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d} left"
        return Text(said, style="progress.remaining")


@contextmanager
def watching(work: Mapping[str, int], interrupts: Interrupts, left: Left) -> Iterator[Callable[[str], None]]:
    """As `progress`, with the time that is left of the whole bench from its first second on."""
    expected: dict[str, Iterator[float]] = {}
    steps: Mapping[str, Sequence[float]] = getattr(work, "seconds", {})
    for kind, seconds in steps.items():
        expected[kind] = iter(seconds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), LeftColumn(left))
    with bars(*columns) as drawing:
        tasks = {kind: drawing.add_task(kind, total=n) for kind, n in work.items() if n}
        interrupts.hold()

        def tick(kind: str) -> None:
            if interrupts.pressed:
                raise KeyboardInterrupt
            left.did(next(expected.get(kind, iter(())), 0.0))
            drawing.advance(tasks[kind])

        yield tick
    if interrupts.pressed:  # after the last tick
        raise KeyboardInterrupt
