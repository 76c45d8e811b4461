"""A progress bar for each kind of work, on stderr, where there is a terminal to draw it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli.interrupts import Interrupts


@contextmanager
def progress(work: Mapping[str, int], interrupts: Interrupts) -> Iterator[Callable[[str], None]]:
    """work: how many steps of each kind there are. Yields what is to be called after each, with its kind, and
    raises KeyboardInterrupt from there once Ctrl-C was pressed."""
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        tasks = {kind: bars.add_task(kind, total=steps, start=False) for kind, steps in work.items() if steps}
        interrupts.hold()

        def tick(kind: str) -> None:
            if interrupts.pressed:
                raise KeyboardInterrupt
            bars.start_task(tasks[kind])
            bars.advance(tasks[kind])

        yield tick
    if interrupts.pressed:  # after the last tick
        raise KeyboardInterrupt
