"""A progress bar for each kind of work, on stderr, where there is a terminal to draw it."""

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

UNKNOWN = -1  # steps
STEPS = 100  # of work that tells which share of it is over
SHOW_CURSOR = b"\x1b[?25h\n"  # below the bars


@contextmanager
def bars(*columns: ProgressColumn) -> Iterator[Progress]:
    """rich hides the cursor as long as it draws: it is shown again, whatever ends the process."""
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
    """Yield what is to be called after each step, with its kind.

    work: how many steps of each kind there are; UNKNOWN where that is seen at the end only. A step raises
    KeyboardInterrupt once Ctrl-C was pressed; so does the end, but where at_end is False.
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
    """Return what takes a kind of work and the share of it that is over, and ticks for each of STEPS."""
    done = Counter[str]()

    def tell(kind: str, share: float) -> None:
        while done[kind] < int(share * STEPS):
            done[kind] += 1
            tick(kind)

    return tell
