"""What one token of context takes in the key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

F16 = 2
MAX_LAYERS = 1 << 16  # no model has so many
# Where the file does not say which layers attend: every so many (llama.cpp, src/models).
_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}


@dataclass(frozen=True)
class AttentionShape:
    """What the cache's size depends on.

    count: layers of the model itself, without those that guess further tokens.
    heads, kv_heads: one number, or one for each layer.
    key, value: numbers a head; 0 for n_embd / heads.
    compressed: keys and values are kept as one vector (DeepSeek's MLA).
    recurrent: for each layer, whether it keeps a state instead; or interval: every so many-th does not.
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
    """Return the bytes at F16; 0 where the numbers are not known. Layers with a window, or that share another
    layer's cache, count in full."""
    most = max(layers.heads, default=0)
    if not most or layers.count > MAX_LAYERS:
        return 0
    plain = layers.n_embd // most
    key, value = layers.key or plain, 0 if layers.mla else layers.value or plain
    selected = layers.kv_heads or layers.heads
    return (
        F16
        * (key + value)
        * sum(_per_layer(selected, i) for i in range(layers.count) if not _is_recurrent(layers, i))
    )


def _is_recurrent(layers: AttentionShape, i: int) -> bool:
    if len(layers.recurrent) > 1:
        return bool(_per_layer(layers.recurrent, i))
    interval = layers.interval or _INTERVALS.get(layers.arch, 1)
    return (i + 1) % interval != 0


def _per_layer(values: Sequence[int], i: int) -> int:
    """Return a layer's number, of one for all or one for each layer."""
    return values[i] if i < len(values) else values[-1] if len(values) == 1 else 0
