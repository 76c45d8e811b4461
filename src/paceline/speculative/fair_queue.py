"""A queue in which clients take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Container, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue that serves clients in turns, and each client's items in order.
    A client with a hundred requests waits behind a client that sends its first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._clients.values()))

    def __iter__(self) -> Iterator[T]:
        for items in list(self._clients.values()):
            yield from list(items)

    def add(self, client: str, item: T) -> None:
        self._clients.setdefault(client, deque()).append(item)

    def pop(self, but: Container[str] = ()) -> T:
        """Remove and return the next item of a client not in `but`. Raises StopIteration if there is none."""
        client = next(client for client in self._clients if client not in but)
        items = self._clients.pop(client)
        item = items.popleft()
        if items:
            self._clients[client] = items
        return item

    def move_to_end(self, client: str) -> None:
        """Let the clients that came since its last turn go first."""
        if client in self._clients:
            self._clients.move_to_end(client)

    def peek(self) -> T:
        """Return the item that `pop` would return. Raises StopIteration if there is none."""
        return next(iter(self._clients.values()))[0]

    def remove(self, client: str, item: T) -> bool:
        """Remove an item; return whether it was waiting."""
        items = self._clients.get(client)
        if items is None or item not in items:
            return False
        items.remove(item)
        if not items:
            del self._clients[client]
        return True
