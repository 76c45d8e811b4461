"""Measure the memory bandwidth, which bounds the decoding of one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import PacelineError

MAX_SECONDS = 0.2  # of reading
N_ROUNDS = 5  # the fastest counts: other programs can only slow a round down
PIECE_BYTES = 1 << 20  # per numpy call: long beside the call, short beside a round
SIZE = 1 << 30  # bytes, more than nearly every cache
MAX_MEMORY_SHARE = 4  # at most 1/4 of the free memory
LEAST = 64 << 20  # bytes


def memory_bandwidth(threads: int) -> float:
    """Return the bytes per second that these threads read together.

    Raises PacelineError without enough memory or threads.
    """
    size = min(SIZE, free_memory() // MAX_MEMORY_SHARE)
    if size < LEAST:
        raise PacelineError("too little memory is free to measure how fast it is read: close other programs")
    return measure(threads, size)


def free_memory() -> int:
    """Return the free bytes, by the system and the container's limit."""
    import psutil

    from paceline.hardware.containers import read
    from paceline.hardware.files import SystemFiles

    limit = read(SystemFiles()).memory
    available: int = psutil.virtual_memory().available
    return available if limit is None else min(available, limit // 2)


def measure(threads: int, size: int, clock: Callable[[], float] = perf_counter) -> float:
    """Return bytes per second. Each thread reads memory that it has written, which NUMA places near it."""
    rates = []
    with ExitStack() as stack:
        try:
            pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(threads)]
            filling = [pool.submit(_written_memory, size // threads) for pool in pools]
            memories = [filled.result() for filled in filling]
            for _ in range(N_ROUNDS):
                began = clock()
                until = began + MAX_SECONDS / N_ROUNDS
                reading = [
                    pool.submit(_read, memory, until, clock)
                    for pool, memory in zip(pools, memories, strict=True)
                ]
                read = sum(done.result() for done in reading)
                rates.append(read / max(1e-9, clock() - began))
        except (MemoryError, RuntimeError) as error:  # RuntimeError: a limit of threads
            raise PacelineError(f"could not be measured ({str(error) or 'out of memory'})") from error
    return max(rates)


def _written_memory(size: int) -> Sequence[NDArray[np.int64]]:
    """Return pieces of written memory; unwritten pages are not backed by memory."""
    return [np.ones(PIECE_BYTES // 8, np.int64) for _ in range(max(1, size // PIECE_BYTES))]


def _read(memory: Sequence[NDArray[np.int64]], until: float, clock: Callable[[], float]) -> int:
    """Return the bytes read until the round is over."""
    read = 0
    while True:
        for piece in memory:
            np.bitwise_or.reduce(piece)  # numpy's fastest way to read every byte
            read += PIECE_BYTES
            if clock() >= until:
                return read
