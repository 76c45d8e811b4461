"""Attention over numpy arrays is computed in pieces, and has the values of the formula."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.heads.arrays import PIECE, attention, rms_norm

Array = NDArray[np.float32]


def by_formula(q: Array, k: Array, v: Array, mask: NDArray[np.bool_]) -> Array:
    """Return softmax(q k / sqrt(d)) v for one head and row after the other."""
    shared, out = len(q) // len(k), np.zeros_like(q)
    for head in range(len(q)):
        for row in range(q.shape[1]):
            seen = np.flatnonzero(mask[row])
            scores = k[head // shared, seen] @ q[head, row] / np.sqrt(q.shape[2])
            weights = np.exp(scores - scores.max())
            out[head, row] = weights / weights.sum() @ v[head // shared, seen]
    return np.concatenate(list(out), -1)


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (4, 4), (8, 1)])
@pytest.mark.parametrize("places", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_attention_has_the_values_of_the_formula(heads: int, groups: int, places: int) -> None:
    rng = np.random.default_rng(places)
    q = rng.normal(size=(heads, 3, 16)).astype(np.float32)
    k, v = rng.normal(size=(2, groups, places + 9, 16)).astype(np.float32)[:, :, :places]
    mask = rng.random((3, places)) < 0.5
    mask[:, 0] = True
    assert np.allclose(attention(q, k, v, mask), by_formula(q, k, v, mask), atol=1e-5)
    everything = np.ones_like(mask)
    assert np.allclose(attention(q, k, v, None), by_formula(q, k, v, everything), atol=1e-5)


def test_a_norm_is_that_of_the_formula() -> None:
    x, weight = np.random.default_rng(0).normal(size=(2, 3, 4, 8)).astype(np.float32)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * weight[0, 0]
    assert rms_norm(x, weight[0, 0], 1e-5).dtype == np.float32
    assert np.allclose(rms_norm(x, weight[0, 0], 1e-5), expected, atol=1e-5)
