"""A child process for hostile input, which may crash it or exhaust its time or memory.

`WorkerProcess` is the parent's part, `serve_requests` the child's. Messages are bytes after their length.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from paceline.speculative.errors import PacelineError
from paceline.system.forks import ForkGuard

STARTED = b"+"  # the first byte on the child's stdout
START_SECONDS = 60.0  # for the child to start
STACK_BYTES = 6 << 20


class WorkerEndedError(Exception):
    """The process ended during a request. slow: after too long a time, or by a kill."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.slow = slow


class WorkerProcess:
    """A child process that starts with the first request (0.2 s) and is replaced if it ends.

    module: its `main` calls serve_requests. purpose: first part of the error if no process starts.
    deadline: seconds for one answer. Any thread may call the methods; requests take turns."""

    def __init__(self, module: str, purpose: str, deadline: float) -> None:
        self._module, self._purpose, self.deadline = module, purpose, deadline
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
                with self._timer(self.deadline), suppress(OSError):  # it may end during the write
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
                [sys.executable, "-c", f"from {self._module} import main; main()"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # only the parent handles Ctrl-C
            )
        except OSError as error:
            raise PacelineError(f"{self._purpose}: no process starts ({error})") from error
        atexit.register(self.close)
        assert process.stdout is not None
        with self._timer(START_SECONDS):
            started = process.stdout.read(1)
        if started != STARTED and not self._killed:
            self.close()
            raise PacelineError(f"{self._purpose}: the process for it does not start")
        return process

    @contextmanager
    def _timer(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # it must not kill a later process


def serve_requests(answer: Callable[[bytes], bytes], *, memory: int, seconds: int) -> None:
    """Answer requests from stdin until it ends, in the child.

    memory: bytes of address space. seconds: CPU time of one request, after which SIGXCPU ends the process."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer

    def loop() -> None:
        _limit_memory(memory)
        sink.write(STARTED)
        sink.flush()
        while len(length := source.read(8)) == 8:
            request = source.read(int.from_bytes(length))
            _limit_time(seconds)
            data = answer(request)
            sink.write(len(data).to_bytes(8) + data)
            sink.flush()

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()


def _limit_memory(size: int) -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _limit_time(seconds: int) -> None:
    with suppress(ImportError, ValueError, OSError):
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(usage.ru_utime + usage.ru_stime) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
