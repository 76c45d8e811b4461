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
    """count: those of the model itself, without the ones that guess further tokens. shared: of these, the
    last that use an earlier layer's cache. heads, kv_heads: one number, or one for each layer. key, value:
    numbers a head; 0 for n_embd / heads. compressed: keys and values are kept as one vector (DeepSeek's MLA).
    recurrent: for each layer, whether it keeps a state instead; or interval: every so many-th does not.
    local, local_key, local_value: for each layer, whether it sees a window only, and its sizes where they
    differ."""

    arch: str
    count: int
    n_embd: int
    heads: Sequence[int]
    kv_heads: Sequence[int]
    key: int = 0
    value: int = 0
    shared: int = 0
    compressed: bool = False
    recurrent: Sequence[int] = ()
    interval: int = 0
    local: Sequence[int] = ()
    local_key: int = 0
    local_value: int = 0


def kv_bytes(layers: AttentionShape) -> int:
    """Bytes at F16; 0 where the numbers are not known. A layer with a sliding window counts in full, though
    what it keeps stops growing at the window."""
    most = max(layers.heads, default=0)
    if not most or layers.count > MAX_LAYERS:
        return 0
    total, plain = 0, layers.n_embd // most
    for i in range(layers.count - min(layers.count, layers.shared)):
        if _is_recurrent(layers, i):
            continue
        heads = _of(layers.heads, i)
        kept = _of(layers.kv_heads, i) if layers.kv_heads else heads
        local = bool(layers.local_key and len(layers.local) > 1 and _of(layers.local, i))
        key = layers.local_key if local else layers.key or plain
        value = (layers.local_value or layers.local_key) if local else layers.value or plain
        total += kept * (key if layers.compressed else key + value)
    return total * F16


def _is_recurrent(layers: AttentionShape, i: int) -> bool:
    if len(layers.recurrent) > 1:
        return bool(_of(layers.recurrent, i))
    interval = layers.interval or _INTERVALS.get(layers.arch, 1)
    return (i + 1) % interval != 0


def _of(values: Sequence[int], i: int) -> int:
    """Of one number for all, or one for each layer."""
    return values[i] if i < len(values) else values[-1] if len(values) == 1 else 0
