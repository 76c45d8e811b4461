"""Several threads on one loaded model: they take turns, a step at a time, and wait for sessions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any
from weakref import WeakKeyDictionary

from paceline.core.decode import Request
from paceline.core.errors import BusyError
from paceline.system.forks import Process

# Seconds after which a thread that waits looks whether a session was given back, and after which it tries to
# get one anyway. (A Condition would tell it, but Ctrl-C can leave one locked.)
LOOK, TRY = 0.005, 0.1


class Sharing:
    """Who has its turn is the only one to touch the model's contexts, the drafters and the policy.

    Every lock is held by a `with` statement of its own, some of them in a generator: wherever Ctrl-C comes,
    what it leaves behind gives them back."""

    def __init__(self) -> None:
        self.process = Process()
        self._line, self._lock, self._arrivals = threading.Lock(), threading.Lock(), threading.Lock()
        self._given_back = 0  # sessions so far
        self._later: deque[Callable[[], None]] = deque()
        self._holders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of sessions, and their threads

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Threads get it in the order in which they asked. Raises UsageError in a forked process."""
        self.process.require()
        held = self._held()
        try:
            # A lock is not fair: a thread that asks again at once gets it again. So one thread waits for it,
            # and the others wait for their place behind that one.
            with self._line:
                next(held)
            while self._later:
                self._later.popleft()()
            yield
        finally:
            held.close()

    def _held(self) -> Generator[None, None, None]:
        with self._lock:
            yield

    def later(self, call: Callable[[], None]) -> None:
        """Call it when the next turn begins, whosever that is: for objects that are dropped, which happens at
        any moment and in any thread."""
        self._later.append(call)

    def start(self, holder: object, begin: Callable[[], Request]) -> Request:
        """`begin()`, whose session is `holder`'s. While threads beside this one have all sessions, it waits,
        but for a thread that has one already: it might wait for itself. BusyError is raised then."""
        with self.turn():
            has_one = threading.get_ident() in self._holders.values()
            if has_one:
                return self._begin(holder, begin)
        with self._arrivals:
            while True:
                with self.turn():
                    known = self._given_back
                    try:
                        return self._begin(holder, begin)
                    except BusyError:
                        if not self._holders:  # somebody has them who will not tell
                            raise
                end = monotonic() + TRY
                while self._given_back == known and monotonic() < end:
                    sleep(LOOK)

    def _begin(self, holder: object, begin: Callable[[], Request]) -> Request:
        request = begin()
        self._holders[holder] = threading.get_ident()
        return request

    def done(self, holder: object) -> None:
        """In the holder's turn: its session was given back."""
        self._holders.pop(holder, None)
        self._given_back += 1
