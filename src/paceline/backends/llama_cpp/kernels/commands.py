"""Concurrent subprocesses that end with this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from paceline.speculative.errors import KernelError
from paceline.system.processes import wait_within
from paceline.system.shutdown import cleanup_on_exit

CPU_SECONDS, IDLE_SECONDS = 900.0, 300.0  # processor time of one command, and time without progress


class CommandResult(NamedTuple):
    """Success and the whole output of a command."""

    ok: bool
    output: str


def run_all(
    commands: Sequence[Sequence[str]], work: Path, idle_seconds: float = IDLE_SECONDS
) -> list[CommandResult]:
    """Run commands concurrently, with temporary files in `work`. Any exception kills those that still run.
    Raises KernelError if a command cannot start, computes for too long or makes no progress for so long."""
    import psutil

    running: list[subprocess.Popen[bytes]] = []
    logs = [work / f"{number}.log" for number in range(len(commands))]

    def stop() -> None:
        # Found by their environment: an interrupt may come before a process is in `running`.
        for child in psutil.Process().children():
            with suppress(psutil.Error, OSError):
                if child.environ().get("TMPDIR") == str(work):
                    os.killpg(child.pid, signal.SIGKILL)  # also a compiler's children

    with cleanup_on_exit(stop):
        try:
            for command, log in zip(commands, logs, strict=True):
                running.append(_start(command, work, log))
            for process in running:
                wait_within(process, cpu_seconds=CPU_SECONDS, idle_seconds=idle_seconds)
        except TimeoutError as error:
            raise KernelError(f"{commands[0][0]}: {error}, and was ended") from None
        finally:
            stop()
            for process in running:
                process.wait()
    return [
        CommandResult(process.returncode == 0, log.read_text("utf-8", "replace"))
        for process, log in zip(running, logs, strict=True)
    ]


def _start(command: Sequence[str], work: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a command in a new session, so that Ctrl-C reaches it only through this process."""
    env = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    with log.open("wb") as out:
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )
        except OSError as error:
            raise KernelError(f"{command[0]}: cannot be run ({error.strerror})") from error
