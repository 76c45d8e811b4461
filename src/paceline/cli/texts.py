"""Text from files, pipes and stdin, in whole; what cannot be used is one line."""

from __future__ import annotations

import os
import select
import stat
import sys
from pathlib import Path

from paceline.core.errors import UsageError

PATIENCE = 3.0  # seconds in which somebody has to begin writing to a named pipe


def read_text(file: Path) -> str:
    """All of a file. Raises UsageError for what cannot be read, or is not UTF-8."""
    try:
        is_pipe = stat.S_ISFIFO(file.stat().st_mode)
        return decoded(_from_pipe(file) if is_pipe else file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a text file") from error


def read_stdin() -> str:
    return decoded(sys.stdin.buffer.read(), "stdin")


def decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text (byte {error.start}); convert it first") from error


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
        return first + pipe.read()
