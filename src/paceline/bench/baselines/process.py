"""Other programs as child processes: started, watched, and always stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import IO

import psutil

from paceline.speculative.errors import BaselineError
from paceline.speculative.printable import truncated
from paceline.system.shutdown import register_cleanup

LOCAL = "127.0.0.1"
SHUTDOWN_SECONDS = 3.0  # between SIGTERM and SIGKILL
TAIL = 64 * 1024  # bytes of output that are read by default
MAX_OUTPUT = 64 << 20  # bytes
LOOK = 0.02  # seconds between polls
LOG_LINES = 8  # that an error quotes

_running: weakref.WeakSet[BackgroundProgram] = weakref.WeakSet()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


class BackgroundProgram:
    """A running program in its own process group, so that Ctrl-C reaches only us.
    It ends with `close`, with this object, or with our process unless that is killed (SIGKILL). folder: its
    working directory. Raises BaselineError if it cannot be started."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path | None = None) -> None:
        self.name = name
        # Files, not pipes: the program must not block until we read.
        self._logs: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        # Without llama.cpp's settings in the environment, which our engine ignores.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")}
        try:
            self._process = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=self._logs[0],
                stderr=self._logs[1], start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            for log in self._logs:
                log.close()
            raise BaselineError(f"{name}: {argv[0]} cannot be started: {error.strerror}") from error
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _stop, self._process)
        _running.add(self)

    def ended(self, patience: float) -> bool:
        """True if the program has ended or does so within `patience` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)
        return self._process.returncode is not None

    def output(self, n_bytes: int = TAIL) -> tuple[str, str]:
        """Return the ends of stdout and stderr."""
        files = [log.fileno() for log in self._logs]
        out, err = (os.pread(file, n_bytes, max(0, os.fstat(file).st_size - n_bytes)) for file in files)
        return out.decode(errors="replace"), err.decode(errors="replace")

    def output_tail(self) -> str:
        return "".join(self.output())

    def exit_description(self) -> str:
        code = self._process.returncode
        names = {int(one): one.name for one in signal.Signals}  # real-time signals have none
        ending = f"ended with exit status {code}" if code >= 0 else f"was ended by {names.get(-code, -code)}"
        return self.with_log(ending)

    def with_log(self, what: str) -> str:
        """Return a failure with the last lines of the output."""
        lines = [line for line in self.output_tail().splitlines() if line.strip()]
        return f"{what}; its log: {' / '.join(map(truncated, lines[-LOG_LINES:])) or 'empty'}"

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Poll `ready` until it is true. Raises BaselineError if the program ends first or needs longer."""
        deadline = monotonic() + timeout
        while not ready():
            if self.ended(LOOK):
                raise BaselineError(f"{self.name} {self.exit_description()}")
            if monotonic() > deadline:
                raise BaselineError(f"{self.name} {self.with_log(f'was not ready within {timeout:g} s')}")

    def run_to_end(self, timeout: float) -> int:
        """Wait for the end and return the peak memory. Raises BaselineError for failure or excess."""
        deadline, peak, why = monotonic() + timeout, 0, ""
        while not why and not self.ended(LOOK):
            peak = max(peak, self.memory() or 0)
            if any(os.fstat(log.fileno()).st_size > MAX_OUTPUT for log in self._logs):
                why = f"wrote more than {MAX_OUTPUT >> 20} MiB and was stopped"
            elif monotonic() > deadline:
                why = f"did not end within {timeout:g} s and was stopped"
        if why or self._process.returncode:
            raise BaselineError(f"{self.name} {why or self.exit_description()}")
        return peak

    def memory(self) -> int | None:
        """Return the bytes of RAM of the program and its children; None if it has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            family = (process, *process.children(recursive=True))
            return sum(int(one.memory_info().rss) for one in family) or None
        return None

    def close(self) -> None:
        self._finalizer()
        _running.discard(self)
        for log in self._logs:
            log.close()


def kill_all() -> None:
    """Kill the programs of this process before it exits without unwinding."""
    for program in list(_running):
        _signal(program.pid, signal.SIGKILL)


register_cleanup(kill_all)


def _stop(process: subprocess.Popen[bytes]) -> None:
    _signal(process.pid, signal.SIGTERM)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=SHUTDOWN_SECONDS)
    finally:
        _signal(process.pid, signal.SIGKILL)  # always: children may be left
        process.wait()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
