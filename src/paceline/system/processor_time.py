"""A limit on a child's processor time: on a busy machine, the clock says nothing about the child."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread

POLL_SECONDS = 0.1


@dataclass
class Overrun:
    """Why a child was killed. slow: it used too much processor time. stalled: it got none for too long."""

    slow: bool = False
    stalled: bool = False


@contextmanager
def limit_processor_time(
    process: subprocess.Popen[bytes], seconds: float, patience: float
) -> Iterator[Overrun]:
    """Kill a child that uses `seconds` of processor time from now on, or gets none for `patience` seconds."""
    import psutil

    def used() -> float:
        with suppress(psutil.Error):  # it has ended
            times = psutil.Process(process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    done, overrun, began = Event(), Overrun(), used()

    def watch() -> None:
        before, idle = began, 0
        while not done.wait(POLL_SECONDS):
            now = used()
            # Polls are counted: while this process itself does not run, no time passes.
            before, idle = now, idle + 1 if now == before else 0
            overrun.slow, overrun.stalled = now - began > seconds, idle * POLL_SECONDS > patience
            if overrun.slow or overrun.stalled:
                process.kill()
                return

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield overrun
    finally:
        done.set()
        thread.join()  # it must not kill a later process
