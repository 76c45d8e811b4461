"""The threads that help one to compute (OpenMP's), and when it lets them go.

Each thread that enters a parallel region has helpers of its own until it ends or gives them back. Where all
of them together are more than there are processors, GCC's OpenMP waits at barriers by sleeping instead of by
spinning: where one thread has loaded and measured a model and another decodes, passes took 1.4 times as long,
those of a small draft up to eight times (docs/log/serving.md).
"""

from __future__ import annotations

import threading
from typing import Any

from paceline.system.forks import ForkGuard

SOFT = 1  # omp_pause_soft: what was set up stays, the threads go


class OpenMPThreads:
    """library: one that was linked with OpenMP, by ctypes; with any other nothing happens."""

    def __init__(self, library: Any) -> None:
        self._pause = getattr(library, "omp_pause_resource_all", None)
        self._process = ForkGuard()
        self._last = 0  # the thread that has computed last

    def on_compute(self) -> None:
        """The calling thread has computed. Those that take turns leave each other the processors."""
        this = threading.get_ident()
        if this != self._last:
            if self._last:
                self.release()
            self._last = this

    def release(self) -> None:
        """Those of the calling thread, which gets others when it computes again: 0.1 ms."""
        if self._pause is not None and self._process.is_current:  # a fork would wait for them for ever
            self._pause(SOFT)
