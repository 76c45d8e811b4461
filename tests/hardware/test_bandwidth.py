"""How fast memory is read: bounded in time and memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from paceline.hardware import bandwidth
from paceline.hardware.bandwidth import PIECE_BYTES, SIZE, memory_bandwidth
from paceline.speculative.errors import PacelineError


def test_a_part_of_the_free_memory_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda threads, size: float(size))
    for free, size in ((1 << 40, SIZE), (1 << 30, 1 << 28)):
        monkeypatch.setattr(bandwidth, "free_memory", lambda free=free: free)
        assert memory_bandwidth(2) == size
    monkeypatch.setattr(bandwidth, "free_memory", lambda: 1000)
    with pytest.raises(PacelineError, match="too little memory is free"):
        memory_bandwidth(2)


def test_all_threads_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def read(memory: object, until: float, clock: Callable[[], float]) -> int:
        together.wait(timeout=60)
        return PIECE_BYTES

    monkeypatch.setattr(bandwidth, "_read", read)
    ticks = itertools.count()
    assert bandwidth.measure(3, 3 * PIECE_BYTES, lambda: float(next(ticks))) == 3 * PIECE_BYTES


@pytest.mark.parametrize(
    ("error", "why"),
    [(MemoryError(), "out of memory"), (RuntimeError("can't start new thread"), "can't start")],
)
def test_a_limit_of_memory_or_of_threads_ends_all_of_them(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    start, calls, before = threading.Thread.start, itertools.count(), threading.active_count()

    def refused(self: threading.Thread) -> None:
        if next(calls) == 1:
            raise error
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(PacelineError, match=rf"could not be measured \({why}"):
        bandwidth.measure(3, 2 * PIECE_BYTES)
    assert threading.active_count() == before
