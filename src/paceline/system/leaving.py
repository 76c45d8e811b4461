"""Ending the process at once, from any thread and in the middle of anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

_undo: list[Callable[[], object]] = []  # what no `finally` gets to do


@contextmanager
def cleanup_on_exit(undo: Callable[[], object]) -> Iterator[None]:
    """For as long as something outside of the process is not as it was found: `undo` puts it right if the
    process is ended meanwhile."""
    register_cleanup(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def register_cleanup(undo: Callable[[], object]) -> None:
    """Call it where the process is ended, from now on."""
    _undo.append(undo)


def exit_now(
    code: int, undo: list[Callable[[], object]] = _undo, end: Callable[[int], NoReturn] = os._exit
) -> NoReturn:
    """Ends the process with this exit code. Its own list and `os._exit`, because a signal may come when
    Python has taken the modules apart."""
    for one in reversed(undo):
        try:
            one()
        except Exception:  # a terminal that is gone, or a module: it ends all the same
            continue
    end(code)
