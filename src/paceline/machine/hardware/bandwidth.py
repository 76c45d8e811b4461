"""How fast this machine reads memory, which is what decoding one token waits for: measured once, and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import PacelineError
from paceline.machine import home
from paceline.machine.hardware.cores import CPU
from paceline.machine.hardware.files import Files, whole
from paceline.machine.home import Key, Warn
from paceline.machine.identity import cpu_name

SECONDS = 0.4  # for all of it, filling the memory included
ROUNDS = 5  # of which the fastest counts: other programs only ever take something away
PIECE = 1 << 20  # bytes read at a time: long beside a call from Python, short beside a round
LEAST, MOST = 64 << 20, 4 << 30  # bytes that are read
BEYOND, BARELY = 4, 2  # times the last levels' caches: as is wanted, and as will do
SHARE = 4  # of the free memory at most one over this is taken


def measured(threads: int | None = None, *, warn: Warn = lambda _: None, again: bool = False) -> float:
    """Bytes a second that so many threads read together (None: as many as decoding uses). From the disk where
    it was measured before; warn: told where it cannot be kept. Raises PacelineError where too little memory
    is free to tell, or the system gives too little of it or of threads."""
    from paceline.machine.hardware.threads import choose_threads

    threads = threads or choose_threads(None)
    key = _key(threads)
    if not again and (kept := recall(key)) is not None:
        return kept
    rate = measure(threads, size_for(last_level(Files()), free_memory()))
    home.keep("bandwidth", key, {"bytes_per_second": rate}, warn, "memory is measured again next time")
    return rate


def known(threads: int) -> float | None:
    """What `measured` has kept of so many threads; None where nothing was."""
    return recall(_key(threads))


def _key(threads: int) -> Key:
    from paceline.machine.hardware.threads import logical_cores

    return {"processor": cpu_name(), "cores": logical_cores(), "threads": threads}


def size_for(cache: int, free: int) -> int:
    """Bytes to read, so that a cache of so many bytes holds little of them."""
    size = min(MOST, max(LEAST, BEYOND * cache), free // SHARE)
    if size < max(LEAST, min(MOST, BARELY * cache)):
        raise PacelineError(
            f"{free / 1e6:,.0f} MB of memory are free, too few to measure how fast it is read: "
            "close other programs"
        )
    return size


def free_memory() -> int:
    """Bytes, as the system or the container's limit says."""
    import psutil

    from paceline.machine.hardware.containers import read

    limit = read(Files()).memory
    available: int = psutil.virtual_memory().available
    return available if limit is None else min(available, limit // 2)


def last_level(files: Files) -> int:
    """Bytes of the last caches, of all of them together; 0 where nothing tells."""
    caches: dict[str, int] = {}
    for cpu in files.names(CPU, "cpu"):
        folder = f"{CPU}/{cpu}/cache"
        indices = files.names(folder, "index")
        if indices:
            last = f"{folder}/{indices[-1]}"
            caches[files.text(f"{last}/shared_cpu_list") or cpu] = _bytes(files.text(f"{last}/size") or "")
    return sum(caches.values())


def _bytes(text: str) -> int:
    """Of "32768K"."""
    number = whole(text[:-1])
    return 0 if number is None else number << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)


def measure(threads: int, size: int, clock: Callable[[], float] = perf_counter) -> float:
    """Bytes a second. Every thread reads memory of its own, which it has written first: on a machine of
    several nodes it lies near the thread then."""
    rates = []
    with ExitStack() as stack:
        try:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(threads)]
            filling = [pool.submit(_filled, size // threads, clock) for pool in pools]
            memories = [filled.result() for filled in filling]
            for _ in range(ROUNDS):
                began = clock()
                until = began + SECONDS / 2 / ROUNDS
                reading = [
                    pool.submit(_read, memory, until, clock)
                    for pool, memory in zip(pools, memories, strict=True)
                ]
                read = sum(done.result() for done in reading)
                rates.append(read / max(1e-9, clock() - began))
        except (MemoryError, RuntimeError) as error:  # a limit of memory, or of threads
            raise PacelineError(f"could not be measured ({str(error) or 'out of memory'})") from error
    return max(rates)


def _filled(size: int, clock: Callable[[], float]) -> Sequence[NDArray[np.int64]]:
    """Written, so that there is memory behind it, until the time for it is over. Raises PacelineError where
    that is too early: what was written would be read from a cache."""
    until, pieces = clock() + SECONDS / 2, []
    wanted = max(1, size // PIECE)
    for _ in range(wanted):
        pieces.append(np.ones(PIECE // 8, np.int64))
        if clock() > until:
            break
    if 2 * len(pieces) < wanted:
        raise PacelineError(
            f"could not be measured ({len(pieces):,} of {wanted:,} MB were written in the time for it): "
            "try again when the machine is less busy"
        )
    return pieces


def _read(memory: Sequence[NDArray[np.int64]], until: float, clock: Callable[[], float]) -> int:
    """Bytes, until the round is over."""
    read = 0
    while True:
        for piece in memory:
            np.bitwise_or.reduce(piece)  # numpy's fastest way to look at every byte
            read += PIECE
            if clock() >= until:
                return read


def recall(key: Key) -> float | None:
    """What was kept; None where nothing was, or nothing that can be used: it is measured in a moment."""
    try:
        rate = home.recall("bandwidth", key).get("bytes_per_second", 0)
    except (OSError, ValueError):
        return None
    return float(rate) if type(rate) in (int, float) and 1e6 < rate < 1e15 else None
