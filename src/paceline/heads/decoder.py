"""A transformer layer of a head, as in Llama and Qwen3: attention with rotary positions, then SwiGLU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paceline.heads.arrays import array, attention, concatenate, is_numpy, rms_norm, sigmoid, silu, zeros

MIN_CAPACITY = 256  # positions
# Numbers of each type of rotary positions in config.json.
ROPE_FACTORS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
Weights = Mapping[str, Any]  # arrays of numpy or torch by name
Rotation = tuple[Any, Any]  # cosine and sine [rows, rotated numbers of a head]
Product = Callable[[Any], Any]  # rows [n, inputs] -> [n, outputs]
# The product of a matrix [outputs, inputs] and a bias or None; None if it has nothing better than Linear.
MakeLinear = Callable[[Any, Any], Product | None]


@dataclass(frozen=True)
class LayerShape:
    """The dimensions of a head's layers.
    hidden: width of the residual stream. feed_forward: width between, 0 for layers without that block.
    rope_scaling: the entry of config.json, with its type; None for plain rotary positions.
    rotary: numbers of a head that are rotated, 0 for all."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    rotary: int = 0


class Linear:
    """A product with a matrix [outputs, inputs]."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Any) -> Any:
        out = x @ self.weight.T
        return out if self.bias is None else out + self.bias


def linear(weights: Weights, name: str, make: MakeLinear | None = None) -> Product:
    """Return the product of the weights `name`.weight and `name`.bias."""
    return _product(weights[f"{name}.weight"], weights.get(f"{name}.bias"), make)


def _product(weight: Any, bias: Any, make: MakeLinear | None) -> Product:
    made = None if make is None else make(weight, bias)
    return Linear(weight, bias) if made is None else made


class Stacked:
    """Several products of the same rows: one product for numpy, and torch's weights as they are trained."""

    def __init__(self, weights: Weights, names: Sequence[str], make: MakeLinear | None) -> None:
        matrices = [weights[f"{name}.weight"] for name in names]
        biases = [weights.get(f"{name}.bias") for name in names]
        self._ends = np.cumsum([len(matrix) for matrix in matrices]).tolist()
        if is_numpy(matrices[0]):
            bias = None
            if any(one is not None for one in biases):
                pairs = zip(matrices, biases, strict=True)
                bias = np.concatenate([zeros(m, (len(m),)) if b is None else b for m, b in pairs])
            self._parts = [_product(np.concatenate(matrices), bias, make)]
        else:
            self._parts = [Linear(*pair) for pair in zip(matrices, biases, strict=True)]

    def __call__(self, x: Any) -> list[Any]:
        """Return the results of each."""
        if len(self._parts) > 1:
            return [part(x) for part in self._parts]
        out = self._parts[0](x)
        return [out[:, start:end] for start, end in zip([0, *self._ends], self._ends, strict=False)]


class Cache(Protocol):
    """Keys and values of earlier rows."""

    def extend(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append rows; return the keys and values of all."""


class KeyValueCache:
    """Keys and values [kv_heads, places, head_dim] of a layer."""

    def __init__(self) -> None:
        self._keys: Any = None
        self._values: Any = None
        self.n = 0

    def extend(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append places; return the keys and values of all."""
        start, end = self.n, self.n + keys.shape[1]
        if self._keys is None or end > self._keys.shape[1]:
            self._grow(keys, max(MIN_CAPACITY, 1 << (end - 1).bit_length()))
        self._keys[:, start:end], self._values[:, start:end] = keys, values
        self.n = end
        return self._keys[:, :end], self._values[:, :end]

    def _grow(self, like: Any, capacity: int) -> None:
        shape = (like.shape[0], capacity, like.shape[2])
        keys, values = zeros(like, shape), zeros(like, shape)
        if self.n:
            keys[:, : self.n], values[:, : self.n] = self._keys[:, : self.n], self._values[:, : self.n]
        self._keys, self._values = keys, values

    def truncate(self, n: int) -> None:
        self.n = min(self.n, n)


class DecoderLayer:
    """A layer with the weights `prefix`...; a norm, a bias, the feed-forward block or the gate of the
    attention's output may be missing."""

    def __init__(self, shape: LayerShape, weights: Weights, prefix: str, make: MakeLinear | None) -> None:
        self.shape = shape
        self._q = linear(weights, f"{prefix}self_attn.q_proj", make)
        self._kv = Stacked(weights, [f"{prefix}self_attn.{name}_proj" for name in "kv"], make)
        self.o = linear(weights, f"{prefix}self_attn.o_proj", make)
        gate = f"{prefix}self_attn.gate_proj"
        self._gate = linear(weights, gate, make) if f"{gate}.weight" in weights else None
        self._q_norm = weights.get(f"{prefix}self_attn.q_norm.weight")
        self._k_norm = weights.get(f"{prefix}self_attn.k_norm.weight")
        self.input_norm = weights.get(f"{prefix}input_layernorm.weight")
        self._post_norm = weights.get(f"{prefix}post_attention_layernorm.weight")
        self._feeds = f"{prefix}mlp.gate_proj.weight" in weights
        if self._feeds:
            self._gate_up = Stacked(weights, [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")], make)
            self._down = linear(weights, f"{prefix}mlp.down_proj", make)

    def queries(self, x: Any, rotation: Rotation) -> Any:
        """Return [heads, rows, head_dim]. rotation: of the rows' positions (Rotary)."""
        return rotate(self._split(self._q(x), self.shape.heads, self._q_norm), *rotation)

    def keys_values(self, x: Any, rotation: Rotation) -> tuple[Any, Any]:
        """Return keys and values [kv_heads, rows, head_dim]."""
        keys, values = self._kv(x)
        k = self._split(keys, self.shape.kv_heads, self._k_norm)
        return rotate(k, *rotation), self._split(values, self.shape.kv_heads, None)

    def _split(self, x: Any, heads: int, norm: Any) -> Any:
        x = x.reshape(x.shape[0], heads, self.shape.head_dim)
        if norm is not None:
            x = rms_norm(x, norm, self.shape.eps)
        return x.swapaxes(0, 1)

    def __call__(self, x: Any, rotation: Rotation, cache: Cache | None, mask: Any) -> Any:
        """Return the layer's output. The cache also takes the keys and values of x.
        mask: [rows, places of the cache and rows], None for everything."""
        normed = rms_norm(x, self.input_norm, self.shape.eps)
        return self.feed_forward(x + self.attend(normed, rotation, cache, mask))

    def attend(self, normed: Any, rotation: Rotation, cache: Cache | None, mask: Any) -> Any:
        """Return what attention adds to the residual stream."""
        keys, values = self.keys_values(normed, rotation)
        if cache is not None:
            keys, values = cache.extend(keys, values)
        out = attention(self.queries(normed, rotation), keys, values, mask)
        return self.o(out if self._gate is None else out * sigmoid(self._gate(normed)))

    def feed_forward(self, x: Any) -> Any:
        """Return x with the feed-forward block added, if the layer has one."""
        if not self._feeds:
            return x
        normed = x if self._post_norm is None else rms_norm(x, self._post_norm, self.shape.eps)
        gate, up = self._gate_up(normed)
        return x + self._down(silu(gate) * up)


def decoder_layers(
    shape: LayerShape, n: int, weights: Weights, make: MakeLinear | None = None
) -> list[DecoderLayer]:
    """Return the layers with the weights `layers.0.`... to `layers.N.`..."""
    return [DecoderLayer(shape, weights, f"layers.{i}.", make) for i in range(n)]


class Rotary:
    """Cosines and sines of rotary positions."""

    def __init__(self, shape: LayerShape) -> None:
        self._frequencies = np.concatenate([rope_frequencies(shape)] * 2)

    def __call__(self, like: Any, positions: Any) -> Rotation:
        """Return cosine and sine [rows, rotated numbers] of positions, as arrays like another one."""
        angles = np.asarray(positions, np.float64)[:, None] * self._frequencies
        return array(like, np.cos(angles)), array(like, np.sin(angles))


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Apply rotary positions (Su et al. 2021, arXiv:2104.09864) with the two halves of a head, or of its
    rotated numbers, as pairs."""
    n, half = cos.shape[-1], cos.shape[-1] // 2
    x, rest = x[..., :n], x[..., n:]
    out = x * cos + concatenate([-x[..., half:], x[..., :half]]) * sin
    return concatenate([out, rest]) if rest.shape[-1] else out


def rope_frequencies(shape: LayerShape) -> Any:
    """Return the angle per position, of each pair."""
    d = shape.rotary or shape.head_dim
    frequencies = shape.rope_theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    scaling = dict(shape.rope_scaling or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "factors":  # as a GGUF file has them
        return frequencies / scaling["factors"]
    if kind == "linear":
        return frequencies / float(scaling["factor"])
    # Low frequencies are divided by the factor, high ones kept, and those between blended.
    factor, low, high, original = (float(scaling[name]) for name in ROPE_FACTORS["llama3"])
    wavelengths = 2 * math.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return frequencies * (smooth + (1.0 - smooth) / factor)


def causal_mask(rows: int, places: int, window: int = 0) -> Any:
    """Return the mask [rows, places] of rows at the end of the places.
    window: places that a row sees, itself included; 0 for all before it."""
    distance = np.arange(places - rows, places)[:, None] - np.arange(places)
    return (distance >= 0) & (distance < window) if window else distance >= 0


def block_mask(context: int, rows: int, window: int, *, causal: bool) -> Any:
    """Return the mask [rows, context + rows] of a block behind a context.
    window: places of the context that all rows see. causal: rows do not see later rows."""
    seen = np.broadcast_to(np.arange(context) >= context - window, (rows, context))
    block = np.tri(rows, dtype=np.bool_) if causal else np.ones((rows, rows), np.bool_)
    return np.concatenate([seen, block], 1)


def as_mask(like: Any, mask: Any) -> Any:
    """Return a numpy mask as a mask beside `like`."""
    if is_numpy(like):
        return mask
    import torch

    return torch.as_tensor(mask, device=like.device)
