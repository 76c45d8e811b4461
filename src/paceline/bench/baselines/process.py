"""Other programs, run to be measured: started, watched, and never left behind."""

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
SHUTDOWN_SECONDS = 3.0  # seconds a program gets to stop by itself
TAIL = 64 * 1024  # bytes of its output that are worth reading
MAX_OUTPUT = 64 << 20  # bytes that a program which is run to its end may write
LOOK = 0.02  # seconds between looks at a program
# Reads until the pipe closes, which it does when we end, however that comes about; then kills the group.
WARDEN = 'read -r _; kill -s KILL -- "-$0"'


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


class BackgroundProgram:
    """A running program in a process group of its own, so that Ctrl-C is ours alone to handle.

    This object owns the process, which ends with `close`, with the object, or with us. folder: where it runs.
    Raises PeerError where it cannot be started.
    """

    def __init__(self, name: str, argv: Sequence[str], folder: Path | None = None) -> None:
        self.name = name
        # Files and no pipes: a program that writes much must not wait for us to read.
        self._logs: list[IO[bytes]] = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                # Settings of llama.cpp in the environment would apply to this program only.
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
        """Return whether the program has ended, or does within `patience` seconds."""
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
        """Return how it ended, for an error message."""
        code = self._process.returncode
        names = {int(one): one.name for one in signal.Signals}  # most of the real-time ones have none
        how = f"ended with exit status {code}" if code >= 0 else f"was ended by {names.get(-code, -code)}"
        return f"{how}; its last words: {self.last_words()}"

    def last_words(self) -> str:
        lines = [line for line in self.output_tail().splitlines() if line.strip()]
        return " / ".join(map(truncated, lines[-5:])) or "none"

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Ask `ready` until it is true. Raises PeerError where the program ends before, or takes longer than
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
        """Return the peak of its memory in bytes. Raises PeerError where it does not end within `timeout`
        seconds, or writes more than any such program."""
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
        """Return the bytes of it and its children in RAM. Raises PeerError where it has ended."""
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
    """Start a shell that outlives us by a moment, should we be killed: it then kills the group of `pid`."""
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
        # Also where it ended by itself: children may be left.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
