"""KV caches of sessions, which outlive them so that prefixes can be reused."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from paceline.backends.common import CacheSlot, common_prefix, free_slots


class BatchSlot(CacheSlot):
    """A cache and its tokens. rewinds: the last tokens can be dropped; otherwise all are."""

    def __init__(self, make: Callable[[], Any], rewinds: bool) -> None:
        super().__init__()
        self._make, self._rewinds = make, rewinds
        self.cache: Any = make()

    def trim(self, n: int) -> None:
        """Keep at most the first `n` tokens."""
        if self._rewinds:
            del self.cached[n:]
            self.cache.truncate(len(self.cached))
        else:
            self.clear()

    def clear(self) -> None:
        self.cached.clear()
        self.cache = self._make()


class CacheSlots:
    """The caches of a model's sessions."""

    def __init__(self, n: int, make: Callable[[], Any], rewinds: bool) -> None:
        self._slots = [BatchSlot(make, rewinds) for _ in range(n)]

    def take(self, owner: object, tokens: list[int]) -> tuple[BatchSlot, int]:
        """Return the free slot with the longest prefix of `tokens`, and its length. Raises BusyError."""
        best = max(free_slots(self._slots), key=lambda slot: common_prefix(slot.cached, tokens))
        best.owner = weakref.ref(owner)
        return best, common_prefix(best.cached, tokens)

    @property
    def memory(self) -> int:
        """Bytes of the caches, if known."""
        return sum(int(getattr(slot.cache, "memory", 0)) for slot in self._slots)

    def clear_free(self) -> None:
        for slot in self._slots:
            if slot.is_free:
                slot.clear()
