"""Detection of forks, and release of OpenMP's threads.

A forked process has its parent's memory, but not its threads and their locks.

Each thread that enters a parallel region gets a team of threads until it ends or releases them. If all teams
together exceed the processors, GCC's OpenMP sleeps at barriers instead of spinning. With one thread that has
measured a model and another that decodes, passes took 1.4 times as long, those of a small draft up to eight
times (docs/log/serving.md)."""

from __future__ import annotations

import os
import threading
from typing import Any

from paceline.speculative.errors import UsageError

_count = 0


def _forked() -> None:
    global _count
    _count += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


class ForkGuard:
    """The process that created this object."""

    def __init__(self) -> None:
        self._made = _count

    @property
    def is_current(self) -> bool:
        return self._made == _count

    def require(self) -> None:
        """Raise UsageError in a process that was forked since."""
        if not self.is_current:
            why = "this process was forked from one that uses models and lacks its threads: load them only "
            why += "after the fork, or start processes with multiprocessing.get_context('spawn')"
            raise UsageError(why)


SOFT = 1  # omp_pause_soft: keep the set-up, end the threads


class OpenMPThreads:
    """The OpenMP threads of a ctypes library; without OpenMP nothing happens."""

    def __init__(self, library: Any) -> None:
        self._pause = getattr(library, "omp_pause_resource_all", None)
        self._process = ForkGuard()
        self._last = 0  # the last thread that computed

    def on_compute(self) -> None:
        """Note that the calling thread has computed; threads that take turns release their teams."""
        this = threading.get_ident()
        if this != self._last:
            if self._last:
                self.release()
            self._last = this

    def release(self) -> None:
        """Release the team of the calling thread; a new one takes 0.1 ms."""
        if self._pause is not None and self._process.is_current:  # a fork would wait forever
            self._pause(SOFT)
