"""Exit the process at once, from any thread, with cleanups."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

_undo: list[Callable[[], object]] = []  # cleanups that no `finally` can do


@contextmanager
def cleanup_on_exit(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the process exits at once within the context."""
    register_cleanup(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


def register_cleanup(undo: Callable[[], object]) -> None:
    """Call `undo` whenever the process exits at once."""
    _undo.append(undo)


def exit_now(
    code: int, undo: list[Callable[[], object]] = _undo, end: Callable[[int], NoReturn] = os._exit
) -> NoReturn:
    """Call the cleanups, and exit with this code.
    The defaults bind the list and `os._exit`: a signal may come after Python has cleared the modules."""
    for one in reversed(undo):
        try:
            one()
        except Exception:  # a closed terminal, or a cleared module
            continue
    end(code)
