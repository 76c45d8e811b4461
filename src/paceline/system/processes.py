"""Limits of subprocesses that hold on a busy machine: processor time and progress, not the clock."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

POLL_SECONDS = 0.1

Tick = Callable[[float, float], None]  # called with the seconds waited and those of processor time


class OverusedError(TimeoutError):
    """A process that computed for longer than its limit."""


class IdleError(TimeoutError):
    """A process that neither computed nor read for longer than its limit."""


def wait_within(
    process: subprocess.Popen[bytes],
    *,
    cpu_seconds: float,
    idle_seconds: float,
    tick: Tick = lambda _elapsed, _cpu: None,
) -> int:
    """Wait for the process and return its exit status.
    cpu_seconds: limit of the busiest thread's processor time, children included. idle_seconds: limit of the
    time without progress. The limits count what was polled, so that neither a suspended computer nor a
    stopped job exceeds them.
    Raises OverusedError or IdleError; the process still runs then."""
    polls, idle, used = 0, 0, (0.0, 0)
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        before, used = used, _usage(process.pid, used)
        polls, idle = polls + 1, idle + 1 if used == before else 0
        if used[0] > cpu_seconds:
            raise OverusedError(f"computed for {used[0]:.0f} s")
        if idle * POLL_SECONDS > idle_seconds:
            raise IdleError(f"did nothing for {idle * POLL_SECONDS:.0f} s")
        tick(polls * POLL_SECONDS, used[0])


def run_within(
    command: Sequence[str],
    *,
    cpu_seconds: float,
    idle_seconds: float,
    tick: Tick = lambda _elapsed, _cpu: None,
    **settings: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without input and return its output; any exception kills it. See `wait_within`.
    settings: as of subprocess.Popen. Raises OSError if the command cannot be started."""
    import tempfile

    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, **settings)
        try:
            code = wait_within(process, cpu_seconds=cpu_seconds, idle_seconds=idle_seconds, tick=tick)
        finally:
            _kill_tree(process)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), errors.read())


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and its children."""
    import psutil

    if process.poll() is None:
        with suppress(psutil.Error):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def _usage(pid: int, before: tuple[float, int]) -> tuple[float, int]:
    """Return the processor seconds of the busiest thread and the bytes read; `before` if it has ended."""
    import psutil

    seconds, read = 0.0, 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                seconds = max(seconds, _busiest_thread(process))
            with suppress(psutil.Error, AttributeError):  # macOS does not count bytes
                read += process.io_counters().read_bytes
    except psutil.Error:
        return before
    return max(seconds, before[0]), read


def _busiest_thread(process: Any) -> float:
    import psutil

    try:
        return max((thread.user_time + thread.system_time for thread in process.threads()), default=0.0)
    except (psutil.AccessDenied, PermissionError):  # macOS shows only the sum
        times = process.cpu_times()
        return float(times.user + times.system) / (psutil.cpu_count() or 1)
