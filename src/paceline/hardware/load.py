"""The processor time that other programs take."""

from __future__ import annotations

import os
import time

from paceline.hardware.cores import allowed_here

USUAL_LOAD = 0.25  # processors that other programs usually keep busy


def cores_taken(others: float, threads: int, logical: int, limit: float = USUAL_LOAD) -> bool:
    """Return whether other programs, which keep `others` processors busy, take more than `limit` processors
    from the threads."""
    return others + threads > logical + limit


class OtherLoad:
    """A context that measures how many of this process's processors others kept busy meanwhile."""

    def __enter__(self) -> OtherLoad:
        self._began, self._before = time.monotonic(), _busy_seconds()
        self.processors = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(1e-9, time.monotonic() - self._began)
        self.processors = max(0.0, (_busy_seconds() - self._before) / seconds)


def _busy_seconds() -> float:
    """Return the seconds that other processes and the host took of the allowed processors."""
    import psutil

    times, allowed = psutil.cpu_times(percpu=True), allowed_here()
    usable = [one for n, one in enumerate(times) if allowed is None or n in allowed] or times
    busy = sum(getattr(one, kind, 0.0) for one in usable for kind in ("user", "nice", "system", "steal"))
    own = os.times()
    return float(busy) - own.user - own.system
