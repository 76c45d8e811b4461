"""What a drafter has learned, apart for each scope of requests (Drafter.open)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 64  # scopes that are remembered, the one asked for longest ago being forgotten first


class Scopes(Generic[T]):
    """common: of the scope "", which is always there. make: one for another scope."""

    def __init__(self, common: T, make: Callable[[], T], most: int = MOST) -> None:
        self.common, self._make, self._most = common, make, most
        self._others: OrderedDict[str, T] = OrderedDict()

    def of(self, scope: str) -> T:
        if not scope:
            return self.common
        one = self._others.pop(scope, None)
        if one is None:
            one = self._make()
        self._others[scope] = one
        if len(self._others) > self._most:
            self._others.popitem(last=False)
        return one

    def __iter__(self) -> Iterator[T]:
        yield self.common
        yield from self._others.values()
