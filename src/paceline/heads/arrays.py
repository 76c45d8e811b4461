"""The few array functions of heads. By the same code, a head computes with numpy on a processor, and with
torch on a GPU and in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Places of a product in attention. For larger ones, numpy's BLAS starts threads, which compete with those of
# the target.
PIECE = 128
MAX_EXPONENT = 80.0  # exp() of more overflows in 32 bits


def is_numpy(x: Any) -> bool:
    return isinstance(x, np.ndarray)


def concatenate(parts: Sequence[Any], axis: int = -1) -> Any:
    """Join arrays along an axis."""
    if len(parts) == 1:
        return parts[0]
    if is_numpy(parts[0]):
        return np.concatenate(parts, axis)
    import torch

    return torch.cat(list(parts), axis)


def zeros(like: Any, shape: Sequence[int]) -> Any:
    """Return zeros in the type and on the device of another array."""
    return np.zeros(shape, like.dtype) if is_numpy(like) else like.new_zeros(tuple(shape))


def array(like: Any, values: Any) -> Any:
    """Return values as an array of the kind, type and device of another one."""
    if is_numpy(like):
        if hasattr(values, "detach"):  # a tensor, perhaps of a type that numpy lacks, or on a GPU
            values = to_numpy(values)
        return np.asarray(values, like.dtype)
    import torch

    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def to_numpy(x: Any) -> Any:
    """Return a float32 numpy array."""
    if is_numpy(x):
        return x if x.dtype == np.float32 else x.astype(np.float32)
    return x.detach().float().cpu().numpy()


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-np.maximum(x, -MAX_EXPONENT))) if is_numpy(x) else x.sigmoid()


def tanh(x: Any) -> Any:
    return np.tanh(x) if is_numpy(x) else x.tanh()


def silu(x: Any) -> Any:
    if is_numpy(x):
        return x * sigmoid(x)
    import torch

    return torch.nn.functional.silu(x)


def rms_norm(x: Any, weight: Any, eps: float) -> Any:
    """Return x / rms(x) * weight over the last axis (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    if is_numpy(x):
        return x / np.sqrt(np.vecdot(x, x) / x.shape[-1] + eps)[..., None] * weight
    return x * ((x * x).mean(-1, keepdims=True) + eps) ** -0.5 * weight


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Return softmax(q k / sqrt(d)) v as [rows, heads * d].
    q: [heads, rows, d]. k, v: [kv_heads, places, d]; several query heads share one of them.
    mask: [rows, places], True where a row attends; None for everything."""
    heads, rows, d = q.shape
    if not is_numpy(q):
        import torch

        out = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, enable_gqa=heads != k.shape[0]
        )
        return out[0].transpose(0, 1).reshape(rows, heads * d)
    groups = k.shape[0]
    scores = _scores((q * np.float32(d**-0.5)).reshape(groups, -1, d), k)
    if mask is not None:
        np.copyto(scores.reshape(groups, heads // groups, rows, -1), np.float32(-np.inf), where=~mask)
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    out = _weighted_sum(scores, v) / scores.sum(-1, keepdims=True)
    return out.reshape(heads, rows, d).transpose(1, 0, 2).reshape(rows, heads * d)


def _pieces(x: Any) -> tuple[Any, Any]:
    """Return the places of [groups, places, d] in whole pieces [groups, n, PIECE, d], and the rest."""
    groups, places, d = x.shape
    whole = places // PIECE * PIECE
    return x[:, :whole].reshape(groups, -1, PIECE, d), x[:, whole:]


def _scores(q: Any, k: Any) -> Any:
    """Return q k [groups, queries, places]."""
    pieces, rest = _pieces(k)
    last = q @ rest.swapaxes(1, 2)
    if not pieces.size:
        return last
    first = (q[:, None] @ pieces.swapaxes(2, 3)).swapaxes(1, 2)
    return np.concatenate([first.reshape(*q.shape[:2], -1), last], -1)


def _weighted_sum(weights: Any, v: Any) -> Any:
    """Return weights v [groups, queries, d]."""
    pieces, rest = _pieces(v)
    out = weights[..., v.shape[1] - rest.shape[1] :] @ rest
    if not pieces.size:
        return out
    groups, queries, _ = weights.shape
    first = weights[..., : v.shape[1] - rest.shape[1]].reshape(groups, queries, -1, PIECE)
    return out + (first.swapaxes(1, 2) @ pieces).sum(1)
