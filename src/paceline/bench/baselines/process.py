"""Another program, run beside us for as long as it is measured: started, watched, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, sleep
from typing import IO

from paceline.speculative.errors import PeerError
from paceline.speculative.printable import shortened

LOCAL = "127.0.0.1"
PATIENCE = 3.0  # seconds a program gets to stop by itself
TAIL = 64 * 1024  # bytes of its output that are worth reading
# Reads until the pipe closes, which it does when we end, however that comes about; then kills the group.
WARDEN = 'read -r _; kill -s KILL -- "-$0"'


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOCAL, 0))
        return int(probe.getsockname()[1])


def require_free(port: int) -> int:
    """`port`. Raises PeerError where another program listens on it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCAL, port))
        except OSError as error:
            raise PeerError(
                f"port {port} cannot be used ({error.strerror}): stop what listens on it, or choose another"
            ) from error
    return port


def ending(code: int) -> str:
    """How a process ended, by its exit code."""
    if code >= 0:
        return f"ended with exit status {code}"
    names = {int(one): one.name for one in signal.Signals}  # most of the real-time ones have none
    return f"was ended by {names.get(-code, f'signal {-code}')}"


class BackgroundProgram:
    """A running program in a process group of its own, so that Ctrl-C is ours alone to handle. The sole owner
    of the process; it ends with `close`, with this object, or with us."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """env: the whole environment; ours if None. Raises PeerError where it cannot be started."""
        self.name = name
        # A file and no pipe: a program that says much must not wait for us to listen.
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as this object
        try:
            self._process = subprocess.Popen(
                list(argv),
                env=None if env is None else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"{name}: {argv[0]} cannot be started: {error.strerror}") from error
        self.pid = self._process.pid
        self._finalizer = weakref.finalize(self, _stop, self._process, _watch(self.pid))

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ended(self, patience: float = 0.0) -> bool:
        """Whether the program has ended, or does within `patience` seconds."""
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            return False
        return True

    def said(self) -> str:
        """The end of what it has written, on stdout and stderr."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), TAIL, max(0, size - TAIL)).decode(errors="replace")

    def last_words(self, lines: int = 5) -> str:
        said = [line for line in self.said().splitlines() if line.strip()]
        return "\n".join(shortened(line) for line in said[-lines:])

    def obituary(self) -> str:
        """How it ended, for an error message."""
        words = self.last_words()
        how = ending(self._process.returncode)
        return f"{how}; its last words: {words}" if words else f"{how}, without a word"

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Ask `ready` until it says yes. Raises PeerError where the program ends before, or takes longer than
        `timeout` seconds."""
        deadline = monotonic() + timeout
        while not ready():
            if not self.running:
                raise PeerError(f"{self.name} {self.obituary()}")
            if monotonic() > deadline:
                raise PeerError(
                    f"{self.name} was not ready within {timeout:g} s; its last words: {self.last_words()}"
                )
            sleep(0.02)

    def memory(self) -> int:
        """Bytes of it and its children in RAM. Raises PeerError where it has ended."""
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
        self._log.close()


def _watch(pid: int) -> subprocess.Popen[bytes] | None:
    """A shell that outlives us by a moment, should we be killed: it then kills the group of `pid`."""
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
        process.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also where it ended by itself: children may be left.
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
