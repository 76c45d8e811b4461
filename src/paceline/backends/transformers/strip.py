"""KV caches with spare capacity: a pass writes in place, and an accepted path is moved together.

The caches of transformers copy all keys and values for every token (`torch.cat`). Recurrent state cannot drop
tokens: it returns to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

MIN_CAPACITY = 256  # positions


class LayerCache(CacheLayerMixin):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values [1, heads, capacity, width] of a layer, of which the first `n` positions are used."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_zeros((*key_states.shape[:2], MIN_CAPACITY, key_states.shape[3]))
        self.values = value_states.new_zeros((*value_states.shape[:2], MIN_CAPACITY, value_states.shape[3]))
        self.is_initialized = True

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.n, self.n + key_states.shape[2]
        if end > self.keys.shape[2]:
            self._grow(end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.n = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, n: int) -> None:
        capacity = 1 << (n - 1).bit_length()
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, : self.n] = old[:, :, : self.n]
            setattr(self, name, new)

    def gather(self, places: Any, start: int) -> None:
        """Move the positions `places` to `start` and after, and drop all that follow."""
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
    """The KV cache of a sequence."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=LayerCache)

    def truncate(self, n: int) -> None:
        """Keep the first `n` positions."""
        for layer in self.layers:
            layer.n = min(layer.n, n)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def gather(self, places: Sequence[int], start: int) -> None:
        """Move positions of all layers; see LayerCache."""
        if self.layers:
            index = torch.tensor(places, device=self.layers[0].keys.device)
            for layer in self.layers:
                if layer.is_initialized:  # a view skips some
                    layer.gather(index, start)


class StateCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped here
    """The cache of a sequence in a model with recurrent layers, or with others that drop positions."""

    layers: list[Any]

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.layers = [LayerCache() if type(layer) is DynamicLayer else layer for layer in self.layers]

    def state(self) -> list[dict[str, Any]]:
        return [copied_attributes(vars(layer)) for layer in self.layers]

    def restore(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Return to a state of this text."""
        for layer, state in zip(self.layers, states, strict=True):
            layer.__dict__.update(copied_attributes(state))


def copied_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer's attributes at this time. Keys and values are only appended to: recurrent states, which
    are in dictionaries, are written in place."""
    return {
        name: {i: part.clone() if isinstance(part, torch.Tensor) else part for i, part in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in attributes.items()
    }


class BatchedCache(Cache):  # type: ignore[misc]  # transformers is untyped here
    """The caches of several sessions as one for a pass. rows: number of rows of each session."""

    def __init__(self, caches: Sequence[SequenceCache], rows: Sequence[int]) -> None:
        super().__init__(layers=[])
        self._caches, self._rows = caches, list(rows)

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        parts = zip(
            self._caches, key_states.split(self._rows, 2), value_states.split(self._rows, 2), strict=True
        )
        keys, values = zip(*(cache.update(k, v, layer_idx) for cache, k, v in parts), strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return sum(cache.get_seq_length(layer_idx) for cache in self._caches)
