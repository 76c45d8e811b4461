"""The queue: each client's requests in order, and the clients in turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """A client that sends a hundred requests at once waits behind one that sends its first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def add(self, client: str, one: T) -> None:
        self._clients.setdefault(client, deque()).append(one)

    def next(self, but: Container[str] = ()) -> T:
        """The first of the client whose turn it is, `but` these; that client is the last then. Raises
        StopIteration where nobody waits."""
        client = next(client for client in self._clients if client not in but)
        own = self._clients.pop(client)
        one = own.popleft()
        if own:
            self._clients[client] = own
        return one

    def those(self, which: Callable[[T], bool]) -> list[T]:
        return [one for own in self._clients.values() for one in own if which(one)]

    def remove(self, client: str, one: T) -> bool:
        """Whether it was waiting."""
        own = self._clients.get(client)
        if own is None or one not in own:
            return False
        own.remove(one)
        if not own:
            del self._clients[client]
        return True
