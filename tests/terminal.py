"""A program on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"
# Makes the terminal the controlling one, so that Ctrl-C is a signal.
LAUNCH = (
    "import fcntl, os, sys, termios\n"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])"
)
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()=>].?)")


class Terminal:
    """A running program. seen: its output since the last `expect`, without escape sequences."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**env, "COLUMNS": "100", "LINES": "40"},
        )
        os.close(theirs)
        self.seen = ""

    def write(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, pattern: str, seconds: float = 60.0) -> str:
        """Wait for a match, and return the output up to its end."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"{pattern!r} is not in {self.seen!r}"
            assert self._read(end - time.monotonic()), f"it ended without {pattern!r}: {self.seen!r}"
        shown, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return shown

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for the program's end, and return its exit code."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            assert time.monotonic() < end, f"it goes on: {self.seen!r}"
        return self._process.wait(timeout=seconds)

    def _read(self, seconds: float) -> bool:
        """Wait for more output; false if the last writer has exited."""
        if not select.select([self._ours], [], [], max(0.0, seconds))[0]:
            return True
        try:
            more = os.read(self._ours, 65536)
        except OSError:  # Linux: the last writer has exited
            return False
        self.seen += ESCAPES.sub("", more.decode(errors="replace"))
        return bool(more)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
