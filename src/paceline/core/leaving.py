"""Ending the process at once, from any thread and in the middle of anything."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_undo: list[Callable[[], object]] = []  # what no `finally` gets to do


@contextmanager
def undone(undo: Callable[[], object]) -> Iterator[None]:
    """For as long as something outside of the process is not as it was found: `undo` puts it right if the
    process is ended meanwhile."""
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def leave(code: int) -> NoReturn:
    """Ends the process with this exit code."""
    for undo in reversed(_undo):
        with suppress(OSError):  # a terminal that is gone
            undo()
    os._exit(code)
