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
from time import monotonic, sleep
from typing import IO

from paceline.speculative.errors import PeerError
from paceline.speculative.printable import truncated

LOCAL = "127.0.0.1"
SHUTDOWN_SECONDS = 3.0  # between SIGTERM and SIGKILL
TAIL = 64 * 1024  # bytes of output that are read by default
MAX_OUTPUT = 64 << 20  # bytes
LOOK = 0.02  # seconds between polls
# Waits for the pipe to close, which happens however our process ends, then kills the group.
WARDEN = 'read -r _; kill -s KILL -- "-$0"'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


class BackgroundProgram:
    """A running program in its own process group, so that Ctrl-C reaches only us.

    The process ends with `close`, with this object, or with our process. folder: its working directory.
    Raises PeerError if it cannot be started."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path | None = None) -> None:
        self.name = name
        # Files, not pipes: the program must not block until we read.
        self._logs: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                # Without llama.cpp's settings in the environment, which our engine ignores.
                env={key: value for key, value in os.environ.items() if not key.startswith("LLAMA_ARG_")},
                stdin=subprocess.DEVNULL,
                stdout=self._logs[0],
                stderr=self._logs[1],
                start_new_session=True,
            )
        except OSError as error:
            for log in self._logs:
                log.close()
            raise PeerError(f"{name}: {argv[0]} cannot be started: {error.strerror}") from error
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _stop, self._process, _watch(self.pid))

    def ended(self, patience: float = 0.0) -> bool:
        """True if the program has ended or does so within `patience` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience)
        return self._process.poll() is not None

    def output(self, n_bytes: int = TAIL) -> tuple[str, str]:
        """Return the ends of stdout and stderr."""
        files = [log.fileno() for log in self._logs]
        starts = [max(0, os.fstat(file).st_size - n_bytes) for file in files]
        out, err = (
            os.pread(*it).decode(errors="replace") for it in zip(files, [n_bytes] * 2, starts, strict=True)
        )
        return out, err

    def output_tail(self) -> str:
        return "".join(self.output())

    def exit_description(self) -> str:
        code = self._process.returncode
        names = {int(one): one.name for one in signal.Signals}  # real-time signals have none
        ending = f"ended with exit status {code}" if code >= 0 else f"was ended by {names.get(-code, -code)}"
        return f"{ending}; its last words: {self.last_words()}"

    def last_words(self) -> str:
        lines = [line for line in self.output_tail().splitlines() if line.strip()]
        return " / ".join(map(truncated, lines[-5:])) or "none"

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Poll `ready` until it is true. Raises PeerError if the program ends first or needs more than
        `timeout` seconds."""
        deadline = monotonic() + timeout
        while not ready():
            if self.ended():
                raise PeerError(f"{self.name} {self.exit_description()}")
            if monotonic() > deadline:
                raise PeerError(
                    f"{self.name} was not ready within {timeout:g} s; its last words: {self.last_words()}"
                )
            sleep(LOOK)

    def run_to_end(self, timeout: float) -> int:
        """Wait for the end and return the peak memory in bytes. Raises PeerError after `timeout` seconds or
        too much output."""
        import psutil

        deadline, peak = monotonic() + timeout, 0
        while not self.ended(LOOK):
            with contextlib.suppress(psutil.Error):
                peak = max(peak, int(psutil.Process(self.pid).memory_info().rss))
            if any(os.fstat(log.fileno()).st_size > MAX_OUTPUT for log in self._logs):
                raise PeerError(f"{self.name} wrote more than {MAX_OUTPUT >> 20} MiB and was stopped")
            if monotonic() > deadline:
                raise PeerError(f"{self.name} did not end within {timeout:g} s and was stopped")
        return peak

    @property
    def returncode(self) -> int:
        return self._process.returncode

    def memory(self) -> int:
        """Return the bytes of RAM of the program and its children. Raises PeerError if it has ended."""
        import psutil

        try:
            process = psutil.Process(self.pid)
            rss = int(process.memory_info().rss)
            for child in process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    rss += int(child.memory_info().rss)
        except psutil.NoSuchProcess as error:
            raise PeerError(f"{self.name} has ended") from error
        return rss

    def close(self) -> None:
        self._finalizer()
        for log in self._logs:
            log.close()


def _watch(pid: int) -> subprocess.Popen[bytes] | None:
    """Start a shell that kills the process group of `pid` when our process ends."""
    if os.name != "posix":
        return None
    return subprocess.Popen(
        ["sh", "-c", WARDEN, str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[bytes], warden: subprocess.Popen[bytes] | None) -> None:
    if warden is not None:
        warden.kill()
        warden.communicate()
    _signal(process, signal.SIGTERM)
    try:
        process.wait(timeout=SHUTDOWN_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Always: children may be left.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
