"""Files and folders that exist only while somebody works on them.

Each has a name that no other process takes, and its owner holds a lock on it. One that nobody holds was left
by a process that was killed: the next one that works in the same folder removes it.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.system.leaving import at_leaving
from paceline.system.locks import lock, still_named

NAME = re.compile(r"\.paceline-[0-9a-f]{16}\.tmp")
PRIVATE = 0o600  # for the user's eyes only
USUAL = 0o666  # what the user's umask leaves of it

_mine: set[Path] = set()
_changing = threading.Lock()  # held while one appears


@contextmanager
def scratch_file(folder: Path, mode: int = USUAL) -> Iterator[Path]:
    """An empty file in `folder`, that is gone afterwards if it still has that name. Raises OSError."""
    with _made(folder, mode) as path:
        yield path


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """An empty folder in `folder`, for the user's eyes only, that is gone afterwards with all that is in it,
    if it still has that name. Raises OSError."""
    with _made(folder, None) as path:
        yield path


def abandon() -> None:
    """Remove all that this process works on; for one that is about to end without unwinding."""
    _changing.acquire(timeout=1.0)  # and never given back: nothing new appears
    for path in list(_mine):
        _remove(path)


def tidy(folder: Path) -> None:
    """Remove what killed processes have left in `folder`."""
    if os.name == "nt":  # no locks, so nobody knows
        return
    try:
        left = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    except OSError:
        return
    for path in left:
        with suppress(OSError):  # somebody else's, or gone by now
            handle = _opened(path)
            try:
                if lock(handle):
                    _remove(path)
            finally:
                os.close(handle)


at_leaving(abandon)


@contextmanager
def _made(folder: Path, mode: int | None) -> Iterator[Path]:
    """mode: of a file; None for a folder."""
    tidy(folder)
    path, handle = _new(folder, mode)
    try:
        yield path
    finally:
        _remove(path)
        _mine.discard(path)
        if handle >= 0:  # by now nobody can take it for something left behind
            os.close(handle)


def _new(folder: Path, mode: int | None) -> tuple[Path, int]:
    """With a handle that the lock is held by; -1 on Windows, where what is open cannot be renamed."""
    while True:
        path = folder / f".paceline-{os.urandom(8).hex()}.tmp"
        with _changing:
            if mode is None:
                path.mkdir(mode=0o700)
            else:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
            _mine.add(path)
        if os.name == "nt":
            return path, -1
        with suppress(FileNotFoundError):  # before its lock was held it was taken for something left behind
            handle = _opened(path)
            if lock(handle) is not False and still_named(handle, path):
                return path, handle
            os.close(handle)
        _mine.discard(path)


def _opened(path: Path) -> int:
    """Neither a link, nor waiting for the other end of a pipe."""
    careful = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | careful)
    except IsADirectoryError:
        return os.open(path, os.O_RDONLY | careful)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink()
