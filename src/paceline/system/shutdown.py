"""Exit the process at once, from any thread, with cleanups; and scratch files, which are among these.

Scratch files and folders have names that no other process takes. Those of killed processes are removed two
days later, by the next process that works in the same folder."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
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
    for cleanup in reversed(undo):
        try:
            cleanup()
        except Exception:  # a closed terminal, or a cleared module
            continue
    end(code)


NAME = re.compile(r"\.paceline-[0-9a-f]{16}\.tmp")
PRIVATE = 0o600  # readable by the user only
USUAL = 0o666  # within the user's umask
MAX_AGE_SECONDS = 2 * 24 * 3600

_mine: set[Path] = set()


@contextmanager
def scratch_file(folder: Path, mode: int | None = USUAL) -> Iterator[Path]:
    """Make an empty file in `folder`, and remove it afterwards if it still has that name. Raises OSError.
    mode: None for a private folder, which is removed with its contents."""
    remove_leftovers(folder)
    path = folder / f".paceline-{os.urandom(8).hex()}.tmp"
    _mine.add(path)
    try:
        if mode is None:
            path.mkdir(mode=0o700)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        yield path
    finally:
        _remove(path)
        _mine.discard(path)


scratch_folder = partial(scratch_file, mode=None)


def remove_all() -> None:
    """Remove all scratch files of this process before it exits without unwinding."""
    for path in list(_mine):
        _remove(path)


def remove_leftovers(folder: Path) -> None:
    """Remove the scratch files in `folder` that have not changed for two days."""
    latest = time.time() - MAX_AGE_SECONDS
    with suppress(OSError):
        for path in folder.iterdir():
            if not NAME.fullmatch(path.name) or path in _mine:
                continue
            with suppress(OSError):  # another user's, or removed meanwhile
                found = path.lstat()
                if found.st_mtime < latest and (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                    _remove(path)


register_cleanup(remove_all)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
