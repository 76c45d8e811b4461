"""Text from files, pipes and stdin, in whole; what cannot be used is one line."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

from paceline.core.errors import UsageError

PATIENCE = 3.0  # seconds in which somebody has to begin writing to a named pipe
# Bytes: what ten million tokens spell. A device has no end, and the model's own limit is known only later.
LONGEST = 1 << 26
MARK = "\ufeff"  # of the order of bytes


def read_text(file: Path) -> str:
    """All of a file. Raises UsageError for what cannot be read, is too long for any model, or not UTF-8."""
    try:
        is_pipe = stat.S_ISFIFO(file.stat().st_mode)
        return decoded(_from_pipe(file) if is_pipe else _from_file(file), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a text file") from error


def read_stdin() -> str:
    return decoded(sys.stdin.buffer.read(LONGEST + 1), "stdin")


def decoded(data: bytes, where: str) -> str:
    """Without the mark that Windows' editors begin a text with."""
    if len(data) > LONGEST:
        raise UsageError(f"{where}: has more than {LONGEST >> 20} MiB, which no model reads: shorten it")
    try:
        return data.decode().removeprefix(MARK)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text (byte {error.start}); convert it first") from error


def _from_file(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(LONGEST + 1)


def _from_pipe(file: Path) -> bytes:
    """To open one as a file waits for ever where nobody writes to it."""
    descriptor, first = os.open(file, os.O_RDONLY | os.O_NONBLOCK), b""
    with os.fdopen(descriptor, "rb") as pipe:
        if not select.select([descriptor], [], [], PATIENCE)[0]:
            try:
                first = os.read(descriptor, 1 << 16)
            except BlockingIOError:  # somebody is there, and takes time
                pass
            else:
                if not first:
                    raise UsageError(f"{file}: is a named pipe that nobody writes to; give a text file")
        os.set_blocking(descriptor, True)
        return first + pipe.read(LONGEST + 1)
