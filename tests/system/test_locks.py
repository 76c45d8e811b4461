"""Locks between threads."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from paceline.system.locks import FairLock


def test_a_fair_lock_is_given_in_the_order_of_asking() -> None:
    """Threads take turns; a plain lock would go to the thread that releases it and asks again at once."""
    lock, taken = FairLock(), list[int]()

    def work(thread: int) -> None:
        for _ in range(30):
            with lock.acquire():
                taken.append(thread)
                time.sleep(0.0005)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    with lock.acquire():
        for thread in threads:
            thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(60)
    assert len(taken) == 120
    assert sum(a != b for a, b in pairwise(taken)) >= 100
