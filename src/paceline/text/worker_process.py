"""A child process for hostile input, which may crash it or exhaust its time or memory.

`WorkerProcess` is the parent's part, `serve` the child's. Messages are bytes after their length."""

from __future__ import annotations

import atexit
import importlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.speculative.errors import PacelineError
from paceline.system.forks import ForkGuard

STARTED = b"+"  # the first byte on the child's stdout
STALL_SECONDS = 60.0  # by the clock; the child limits its processor time itself
STACK_BYTES = 6 << 20
MEMORY_BYTES = 1 << 30  # address space of the child


class WorkerEndedError(Exception):
    """The process ended during a request. slow: after too much processor time, or by `kill`."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.slow = slow


class WorkerProcess:
    """A child process that starts with the first request (0.2 s) and is replaced if it ends.
    module: its `answer` turns a request into an answer in the child. purpose: first part of the error if no
    process starts. seconds: of processor time for one answer. niceness: of the child, at least.
    Any thread may call the methods; requests take turns."""

    def __init__(self, module: str, purpose: str, seconds: float, niceness: int = 0) -> None:
        self._purpose, self._command = purpose, f"serve({module!r}, {seconds}, {niceness})"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self._owner = ForkGuard()

    def call(self, request: bytes) -> bytes:
        """Return the answer to `request`.
        Raises WorkerEndedError if the process ends during the request, and PacelineError if none starts."""
        with self._lock:
            process = self._running()
            answer: bytes | None = None
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                with self._deadline(), suppress(OSError):  # it may end during the write
                    process.stdin.write(len(request).to_bytes(8) + request)
                    process.stdin.flush()
                    if len(length := process.stdout.read(8)) == 8:
                        answer = process.stdout.read(int.from_bytes(length))
            except BaseException:  # Ctrl-C: the next request must not read this answer
                self.close()
                raise
            if answer is None:
                process.wait()
                slow = self._killed or process.returncode == -getattr(signal, "SIGXCPU", 0)
                self.close()
                raise WorkerEndedError(slow=slow)
            return answer

    def kill(self) -> None:
        """Kill the process: a running `call` raises WorkerEndedError."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process; the next request starts another."""
        process, self._process, self._killed = self._process, None, False
        atexit.unregister(self.close)
        if process is not None and self._owner.is_current:
            process.kill()
            with process, suppress(OSError):  # unwritten data
                assert process.stdin is not None
                process.stdin.close()

    def _running(self) -> subprocess.Popen[bytes]:
        alive = self._process is not None and self._owner.is_current and self._process.poll() is None
        if self._process is not None and alive and not self._killed:
            return self._process
        self.close()
        self._owner = ForkGuard()
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; {self._command}"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # only the parent handles Ctrl-C
                creationflags=getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0),  # of Windows
            )
        except OSError as error:
            raise PacelineError(f"{self._purpose}: no process starts ({error})") from error
        atexit.register(self.close)
        assert process.stdout is not None
        with self._deadline():
            started = process.stdout.read(1)
        if started != STARTED and not self._killed:
            self.close()
            raise PacelineError(f"{self._purpose}: the process for it does not start")
        return process

    @contextmanager
    def _deadline(self) -> Iterator[None]:
        """Kill the process after STALL_SECONDS."""
        timer = threading.Timer(STALL_SECONDS, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # it must not kill a later process


def serve(module: str, seconds: float, niceness: int) -> None:
    """Answer requests from stdin until it ends, in the child, which also ends as an orphan."""
    source, sink, answer = sys.stdin.buffer, sys.stdout.buffer, importlib.import_module(module).answer
    if niceness and hasattr(os, "nice"):
        os.nice(max(0, niceness - os.nice(0)))  # a child has its parent's
        with suppress(OSError):  # where each session has its own share of a machine, nice alone does nothing
            Path("/proc/self/autogroup").write_text(str(niceness), encoding="ascii")

    def loop() -> None:
        _limit("CORE", 0)
        _limit("AS", MEMORY_BYTES)
        sink.write(STARTED)
        sink.flush()
        while len(length := source.read(8)) == 8:
            request = source.read(int.from_bytes(length))
            _limit("CPU", math.ceil(time.process_time() + seconds))
            data = answer(request)
            sink.write(len(data).to_bytes(8) + data)
            sink.flush()

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


def _limit(name: str, soft: int) -> None:
    """Set a soft limit, on systems that have it."""
    with suppress(ImportError, AttributeError, ValueError, OSError):
        import resource

        kind = getattr(resource, f"RLIMIT_{name}")
        resource.setrlimit(kind, (soft, resource.getrlimit(kind)[1]))
