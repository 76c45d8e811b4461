"""Programs that run side by side and end with this process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.speculative.errors import KernelError
from paceline.system.leaving import undone

TICK = 0.02  # seconds between looks at what is running
LIMIT = 900.0  # seconds for all commands of a call


@dataclass(frozen=True)
class CommandResult:
    """How a program ended, and everything it printed."""

    code: int
    said: str

    @property
    def ok(self) -> bool:
        return self.code == 0


def run_all(commands: Sequence[Sequence[str]], work: Path) -> list[CommandResult]:
    """Run the commands, as many at a time as there are processors; their temporary files go to `work`. On
    any exception, Ctrl-C included, those that are running are killed. Raises KernelError where a program
    cannot be started or takes too long."""
    import psutil

    at_once, until = os.cpu_count() or 1, time.monotonic() + LIMIT
    waiting = list(enumerate(commands))
    running: dict[int, subprocess.Popen[bytes]] = {}
    codes: dict[int, int] = {}

    def stop() -> None:
        # By what they were started with: one that an interrupt kept from being noted here is ended, too.
        for child in psutil.Process().children():
            with suppress(psutil.Error, OSError):
                if child.environ().get("TMPDIR") == str(work):
                    os.killpg(child.pid, signal.SIGKILL)  # what a compiler has started, too

    with undone(stop):
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    number, command = waiting.pop(0)
                    running[number] = _start(command, work, work / f"{number}.log")
                time.sleep(TICK)
                ended = [number for number, process in running.items() if process.poll() is not None]
                codes |= {number: running.pop(number).returncode for number in ended}
                if time.monotonic() > until:
                    raise KernelError(f"{commands[0][0]}: has not ended after {LIMIT:.0f} s")
        finally:
            stop()
            for process in running.values():
                process.wait()
    logs = [(work / f"{number}.log").read_text("utf-8", "replace") for number in range(len(commands))]
    return [CommandResult(codes[number], said) for number, said in enumerate(logs)]


def _start(command: Sequence[str], work: Path, log: Path) -> subprocess.Popen[bytes]:
    """In a process group of its own: Ctrl-C in a terminal reaches it only through this process."""
    env = {**os.environ, "TMPDIR": str(work), "LC_ALL": "C"}
    with log.open("wb") as out:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise KernelError(f"{command[0]}: cannot be run ({error.strerror})") from error
