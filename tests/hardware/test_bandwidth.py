"""How fast memory is read: bounded in time and memory, and kept."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import machine_trees as trees
from paceline.hardware import bandwidth
from paceline.hardware.bandwidth import LEAST, MOST, PIECE, measured, size_for
from paceline.hardware.files import SystemFiles
from paceline.speculative.errors import PacelineError

MB = 1 << 20


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_last_level_is_counted_once_for_those_that_share_it(tmp_path: Path) -> None:
    assert bandwidth.last_level(SystemFiles(trees.epyc(tmp_path))) == 4 * 32 * MB
    assert bandwidth.last_level(SystemFiles(tmp_path / "none")) == 0


def test_what_is_read_lies_well_beyond_the_cache_within_bounds() -> None:
    assert size_for(0, 1 << 40) == LEAST
    assert size_for(32 * MB, 1 << 40) == 128 * MB
    assert size_for(1 << 33, 1 << 40) == MOST


def test_little_free_memory_is_refused() -> None:
    with pytest.raises(PacelineError, match="100 MB of memory are free, too few"):
        size_for(0, 100_000_000)
    with pytest.raises(PacelineError, match="400 MB of memory are free, too few"):
        size_for(64 * MB, 400_000_000)


def test_all_threads_read_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3)

    def read(memory: object, until: float, clock: Callable[[], float]) -> int:
        together.wait(timeout=60)
        return PIECE

    monkeypatch.setattr(bandwidth, "_read", read)
    ticks = itertools.count()
    assert bandwidth.measure(3, 3 * PIECE, lambda: float(next(ticks))) == 3 * PIECE


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
        bandwidth.measure(3, 2 * PIECE)
    assert threading.active_count() == before


def test_it_is_measured_once(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> None:
    rates = iter((2e10, 3e10, 4e10))
    monkeypatch.setattr(bandwidth, "measure", lambda threads, size: next(rates))
    assert (measured(2), measured(2)) == (2e10, 2e10)
    assert measured(1) == 3e10  # another number of threads
    assert (measured(2, again=True), measured(2)) == (4e10, 4e10)
    assert len(list((own_home / "bandwidth").iterdir())) == 2


def test_a_disk_that_refuses_is_told_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    monkeypatch.setattr(bandwidth, "measure", lambda threads, size: 2e10)
    own_home.write_text("a file, where a folder should be")
    said: list[str] = []
    assert measured(2, warn=said.append) == 2e10
    assert len(said) == 1
    assert "cannot be written" in said[0]
