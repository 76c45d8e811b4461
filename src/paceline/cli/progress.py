"""Progress bars on stderr, if it is a terminal."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from paceline.cli.interrupts import Interrupts
from paceline.system.leaving import cleanup_on_exit

UNKNOWN = -1  # number of steps
STEPS = 100  # for work that reports its completed share
SHOW_CURSOR = b"\x1b[?25h\n"


@contextmanager
def bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """Draw progress bars. The cursor, which rich hides, is shown again however the process ends."""
    console = Console(file=sys.stderr)
    drawn = console.is_terminal  # elsewhere it would leave an empty line
    with ExitStack() as stack:
        if drawn:
            stack.enter_context(cleanup_on_exit(lambda: os.write(sys.stderr.fileno(), SHOW_CURSOR)))
        yield stack.enter_context(Progress(*columns, console=console, transient=True, disable=not drawn))


@contextmanager
def progress(
    work: Mapping[str, int], interrupts: Interrupts, *, at_end: bool = True
) -> Iterator[Callable[[str], None]]:
    """Yield a function to be called after each step, with its kind.

    The function raises KeyboardInterrupt after Ctrl-C; with at_end, so does the end of the context.

    work: the number of steps of each kind, or UNKNOWN.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with bars(*columns) as drawing:
        tasks = {
            kind: drawing.add_task(kind, total=None if n == UNKNOWN else n, start=False)
            for kind, n in work.items()
            if n
        }
        interrupts.defer_first()

        def tick(kind: str) -> None:
            interrupts.check()
            drawing.start_task(tasks[kind])
            drawing.advance(tasks[kind])

        yield tick
    if at_end:  # after the last tick
        interrupts.check()


def by_share(tick: Callable[[str], None]) -> Callable[[str, float], None]:
    """Return a function that takes a kind of work and its completed share, and ticks for each of STEPS."""
    done = Counter[str]()

    def report_share(kind: str, share: float) -> None:
        while done[kind] < int(share * STEPS):
            done[kind] += 1
            tick(kind)

    return report_share
