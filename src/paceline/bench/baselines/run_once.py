"""A program that is run to its end, with limits on its time and on what it may say."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import IO

from paceline.speculative.errors import PeerError

LOOK = 0.02  # seconds between looks at a program
LARGEST = 64 << 20  # bytes of what it says


def run_once(
    name: str,
    line: Sequence[str],
    timeout: float,
    *,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    look: Callable[[int], None] | None = None,
) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of one process. It and what it started have ended then, however this ends.

    folder: where it runs. env: its whole environment; ours if None. look: called with its pid now and then.
    Raises PeerError where it cannot be started, does not end within `timeout` seconds, or says more than any
    such program.
    """
    # Files and no pipes: a program that says much must not wait for us to listen.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                line,
                cwd=folder,
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C is ours alone to handle
            )
        except OSError as error:
            raise PeerError(f"{name}: {line[0]} cannot be started: {error.strerror}") from error
        try:
            _wait(name, process, timeout, (out, err), look)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return process.returncode, _said(out), _said(err)


def _wait(
    name: str,
    process: subprocess.Popen[bytes],
    timeout: float,
    files: Sequence[IO[bytes]],
    look: Callable[[int], None] | None,
) -> None:
    deadline = monotonic() + timeout
    while monotonic() < deadline:
        if look is not None:
            look(process.pid)
        if any(os.fstat(file.fileno()).st_size > LARGEST for file in files):
            raise PeerError(f"{name} wrote more than {LARGEST >> 20} MiB and was stopped: see what it says")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=LOOK)
            return
    raise PeerError(
        f"{name} did not end within {timeout:g} s and was stopped: ask for fewer tokens, or give it more time"
    )


def _said(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(LARGEST).decode(errors="replace")
