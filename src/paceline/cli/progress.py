"""Progress on stderr: bars on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TimeRemainingColumn

from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_note
from paceline.system.shutdown import cleanup_on_exit

Tick = Callable[[str], None]  # takes a kind of work
UNKNOWN = -1  # number of steps
STEPS = 100  # for work that reports its completed share
SHOW_CURSOR = b"\x1b[?25h\n"
LINE_SECONDS = 10.0  # between two lines of progress where no bar can be drawn


class ProgressLines(Progress):
    """Progress as lines, for what is no terminal."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self._last = self._began = time.monotonic()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._write(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._write(task_id)

    def _write(self, task_id: TaskID) -> None:
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        task = next(task for task in self.tasks if task.id == task_id)
        share = f"{task.completed:,.0f}" if task.total is None else f"{task.percentage:.0f}%"
        detail = task.fields.get("detail", "")
        print_note(f"{task.description}: {share}{detail and ', ' + detail}, after {now - self._began:.0f} s")


@contextmanager
def bars(*columns: ProgressColumn | str) -> Iterator[Progress]:
    """Draw progress bars. The cursor, which rich hides, is shown again however the process ends."""
    console = Console(file=sys.stderr)
    with ExitStack() as stack:
        if not console.is_terminal:
            yield stack.enter_context(ProgressLines())
            return
        stack.enter_context(cleanup_on_exit(lambda: os.write(sys.stderr.fileno(), SHOW_CURSOR)))
        yield stack.enter_context(Progress(*columns, console=console, transient=True))


@contextmanager
def progress(work: Mapping[str, int], interrupts: Interrupts, *, at_end: bool = True) -> Iterator[Tick]:
    """Yield a function to be called after each step, with its kind.
    The function raises KeyboardInterrupt after Ctrl-C; with at_end, so does the end of the context.
    work: the number of steps of each kind, or UNKNOWN."""
    with bars("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as drawing:
        totals = {kind: None if n == UNKNOWN else n for kind, n in work.items() if n}
        tasks = {kind: drawing.add_task(kind, total=n, start=False) for kind, n in totals.items()}
        interrupts.defer_first()

        def tick(kind: str) -> None:
            interrupts.check()
            drawing.start_task(tasks[kind])
            drawing.advance(tasks[kind])

        yield tick
    if at_end:  # after the last tick
        interrupts.check()


def by_share(tick: Tick) -> Callable[[str, float], None]:
    """Return a function that takes a kind of work and its completed share, and ticks for each of STEPS."""
    done = Counter[str]()

    def report_share(kind: str, share: float) -> None:
        while done[kind] < int(share * STEPS):
            done[kind] += 1
            tick(kind)

    return report_share
