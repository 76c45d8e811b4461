"""Transfer of rows from a device: only what sampling needs, with the same values."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.transformers.forward import filtered_candidates, stable_top_k, top_k_rows
from paceline.speculative import sampling
from paceline.speculative.sampling import Sampling

V = 40
# Few values, so that many are equal.
rows = st.lists(st.integers(-6, 6), min_size=V, max_size=V).map(lambda some: np.array(some, np.float32) / 2)
settings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, V, 99]),
    top_p=st.sampled_from([1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)


@given(rows, settings)
def test_the_odds_of_the_few_are_those_of_the_row(row: np.ndarray, how: Sampling) -> None:
    found = filtered_candidates(torch.from_numpy(row), how)
    whole = sampling.target_distribution(row, how, ())
    if found is None:
        assert how.top_k in (0, V, 99)
        assert how.min_p == 0.0 or how.top_p < 1.0
        return
    ids, values = found
    assert len(ids) <= V
    left = sampling.target_distribution(values, how, ())
    assert sorted(ids[left.ids].tolist()) == sorted(whole.ids.tolist())
    assert all(
        whole.of(int(token)) == pytest.approx(p) for token, p in zip(ids[left.ids], left.p, strict=True)
    )


@given(rows, st.integers(1, V))
def test_the_likeliest_are_cores(row: np.ndarray, k: int) -> None:
    both = torch.from_numpy(np.stack([row, row[::-1].copy()]))
    expected = [sampling.filter_top_k(one.numpy(), k).tolist() for one in both]
    assert top_k_rows(both, k).tolist() == stable_top_k(both, k).tolist() == expected
