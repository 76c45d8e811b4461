"""The size of a token in the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

F16 = 2
MAX_LAYERS = 1 << 16
# Default intervals of attention layers by architecture (llama.cpp, src/models).
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}


@dataclass(frozen=True)
class AttentionShape:
    """The dimensions that determine the cache's size.

    count: layers without those of multi-token prediction. heads, kv_heads: one number, or one per layer.
    key, value: head dimensions; 0 for n_embd / heads. mla: one vector for keys and values (DeepSeek).
    recurrent: flags of layers without a KV cache; or interval: the distance of layers with one.
    """

    arch: str
    count: int
    n_embd: int
    heads: Sequence[int]
    kv_heads: Sequence[int]
    key: int = 0
    value: int = 0
    mla: bool = False
    recurrent: Sequence[int] = ()
    interval: int = 0


def kv_bytes_per_token(layers: AttentionShape) -> int:
    """Return the bytes at F16; 0 if unknown. Sliding-window layers and shared caches count in full."""
    most = max(layers.heads, default=0)
    if not most or layers.count > MAX_LAYERS:
        return 0
    plain = layers.n_embd // most
    key, value = layers.key or plain, 0 if layers.mla else layers.value or plain
    per_layer = layers.kv_heads or layers.heads
    attending = (i for i in range(layers.count) if not _is_recurrent(layers, i))
    return F16 * (key + value) * sum(_per_layer(per_layer, i) for i in attending)


def _is_recurrent(layers: AttentionShape, i: int) -> bool:
    if len(layers.recurrent) > 1:
        return bool(_per_layer(layers.recurrent, i))
    interval = layers.interval or _INTERVALS.get(layers.arch, 1)
    return (i + 1) % interval != 0


def _per_layer(values: Sequence[int], i: int) -> int:
    """Return the value of layer i from a list of one per layer, or of one for all layers."""
    return values[i] if i < len(values) else values[-1] if len(values) == 1 else 0
