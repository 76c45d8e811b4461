"""The memory bandwidth of this machine, which bounds the decoding of one token: measured once, and cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paceline.hardware.cores import CPU
from paceline.hardware.files import SystemFiles, whole
from paceline.speculative.errors import PacelineError
from paceline.system import home
from paceline.system.home import Key, Warn
from paceline.system.identity import cpu_name

SECONDS = 0.2  # of reading
ROUNDS = 5  # of which the fastest counts: other programs only ever take something away
PIECE = 1 << 20  # bytes read at a time: long beside a call from Python, short beside a round
LEAST, MOST = 64 << 20, 2 << 30  # bytes that are read
BEYOND = 4  # times the last levels' caches
SHARE = 4  # of the free memory at most one over this is taken


def measured(threads: int | None = None, *, warn: Warn = lambda _: None, again: bool = False) -> float:
    """Return the bytes a second that so many threads read together (None: as many as decoding uses), measured
    or from the cache on disk. Raises PacelineError if memory or threads do not suffice."""
    from paceline.hardware.threads import choose_threads

    threads = threads or choose_threads(None)
    key = _key(threads)
    if not again and (kept := recall(key)) is not None:
        return kept
    rate = measure(threads, size_for(last_level(SystemFiles()), free_memory()))
    home.keep("bandwidth", key, {"bytes_per_second": rate}, warn, "memory is measured again next time")
    return rate


def known(threads: int) -> float | None:
    """Return the cached bandwidth of so many threads, or None."""
    return recall(_key(threads))


def _key(threads: int) -> Key:
    from paceline.hardware.threads import logical_cores

    return {"processor": cpu_name(), "cores": logical_cores(), "threads": threads}


def size_for(cache: int, free: int) -> int:
    """Return the bytes to read, so that caches of so many bytes hold little of them."""
    size = min(MOST, max(LEAST, BEYOND * cache))
    if size > free // SHARE:
        raise PacelineError(
            f"{free / 1e6:,.0f} MB of memory are free, too few to measure how fast it is read: "
            "close other programs"
        )
    return size


def free_memory() -> int:
    """Return the free bytes, by the system and the container's limit."""
    import psutil

    from paceline.hardware.containers import read

    limit = read(SystemFiles()).memory
    available: int = psutil.virtual_memory().available
    return available if limit is None else min(available, limit // 2)


def last_level(files: SystemFiles) -> int:
    """Return the bytes of all last-level caches together; 0 if unknown."""
    caches: dict[str, int] = {}
    for cpu in files.names(CPU, "cpu"):
        folder = f"{CPU}/{cpu}/cache"
        indices = files.names(folder, "index")
        if indices:
            last = f"{folder}/{indices[-1]}"
            caches[files.text(f"{last}/shared_cpu_list") or cpu] = _bytes(files.text(f"{last}/size") or "")
    return sum(caches.values())


def _bytes(text: str) -> int:
    """Return the bytes of a text such as "32768K"."""
    number = whole(text[:-1])
    return 0 if number is None else number << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0)


def measure(threads: int, size: int, clock: Callable[[], float] = perf_counter) -> float:
    """Return bytes a second. Every thread reads memory that it has written itself, so that on a NUMA machine
    the memory lies near the thread."""
    rates = []
    with ExitStack() as stack:
        try:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(threads)]
            filling = [pool.submit(_filled, size // threads) for pool in pools]
            memories = [filled.result() for filled in filling]
            for _ in range(ROUNDS):
                began = clock()
                until = began + SECONDS / ROUNDS
                reading = [
                    pool.submit(_read, memory, until, clock)
                    for pool, memory in zip(pools, memories, strict=True)
                ]
                read = sum(done.result() for done in reading)
                rates.append(read / max(1e-9, clock() - began))
        except (MemoryError, RuntimeError) as error:  # a limit of memory, or of threads
            raise PacelineError(f"could not be measured ({str(error) or 'out of memory'})") from error
    return max(rates)


def _filled(size: int) -> Sequence[NDArray[np.int64]]:
    """Return pieces of written memory: what was never written has no memory behind it."""
    return [np.ones(PIECE // 8, np.int64) for _ in range(max(1, size // PIECE))]


def _read(memory: Sequence[NDArray[np.int64]], until: float, clock: Callable[[], float]) -> int:
    """Return the bytes read until the round is over."""
    read = 0
    while True:
        for piece in memory:
            np.bitwise_or.reduce(piece)  # numpy's fastest way to look at every byte
            read += PIECE
            if clock() >= until:
                return read


def recall(key: Key) -> float | None:
    """Return the cached bandwidth; None if there is no usable one."""
    rate = home.recall("bandwidth", key, lambda said: float(said["bytes_per_second"]))
    return rate if rate is not None and 1e6 < rate < 1e15 else None
