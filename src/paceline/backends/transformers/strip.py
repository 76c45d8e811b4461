"""The keys and values of one layer for one sequence, in a buffer that has room for more.

transformers' layers make a new tensor for every token (`torch.cat`), and keep no chosen positions. Here a
pass writes in place, and an accepted path is moved to where it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

MIN_CAPACITY = 256  # positions to begin with


class LayerCache(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """n: positions that hold something; of the buffers [1, heads, room, width] the first so many."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            like.new_zeros((*like.shape[:2], MIN_CAPACITY, like.shape[3]))
            for like in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.n, self.n + key_states.shape[2]
        if end > self.keys.shape[2]:
            self.make_room(end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.n = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def make_room(self, n: int) -> None:
        room = 1 << (n - 1).bit_length()
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:2], room, old.shape[3]))
            new[:, :, : self.n] = old[:, :, : self.n]
            setattr(self, name, new)

    def gather(self, places: Any, start: int) -> None:
        """Move what is at `places` to `start` and after; drop all that follows."""
        end = start + len(places)
        self.keys[:, :, start:end] = self.keys[:, :, places]
        self.values[:, :, start:end] = self.values[:, :, places]
        self.n = end

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.n + query_length, 0

    def get_seq_length(self) -> int:
        return self.n

    def get_max_length(self) -> int:
        return -1


class SequenceCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """A model's layers, each with a strip."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=LayerCache)

    def truncate(self, n: int) -> None:
        """Drop what is behind the first `n` positions."""
        for strip in self.layers:
            strip.n = min(strip.n, n)

    @property
    def memory(self) -> int:
        """Bytes, room for more included."""
        cached = [strip for strip in self.layers if strip.is_initialized]
        return sum(int(strip.keys.nbytes + strip.values.nbytes) for strip in cached)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def gather(self, places: Sequence[int], start: int) -> None:
        if self.layers:
            index = torch.tensor(places, device=self.layers[0].keys.device)
            for strip in self.layers:
                if strip.is_initialized:  # a view leaves out some
                    strip.gather(index, start)


class BatchedCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """The caches of several sessions as one for a pass, which has so many `rows` of each."""

    def __init__(self, caches: Sequence[SequenceCache], rows: Sequence[int]) -> None:
        super().__init__(layers=[])
        self._caches, self._rows = caches, list(rows)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        parts = zip(
            self._caches, key_states.split(self._rows, 2), value_states.split(self._rows, 2), strict=True
        )
        found = [cache.update(keys, values, layer_idx) for cache, keys, values in parts]
        return torch.cat([keys for keys, _ in found], 2), torch.cat([values for _, values in found], 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return sum(cache.get_seq_length(layer_idx) for cache in self._caches)
