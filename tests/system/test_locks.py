"""Locks between threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from paceline.system.locks import FairLock


def test_a_fair_lock_is_given_in_the_order_of_asking() -> None:
    lock, taken = FairLock(), list[int]()

    def work(thread: int) -> None:
        for _ in range(30):
            with lock.acquire():
                taken.append(thread)
                time.sleep(0.0005)

    with ThreadPoolExecutor(4) as pool, lock.acquire():
        pool.map(work, range(4))
        time.sleep(0.05)
    assert len(taken) == 120
    assert sum(a != b for a, b in pairwise(taken)) >= 100
