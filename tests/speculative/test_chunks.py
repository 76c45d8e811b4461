"""A chunk is shared by all that read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.chunked_prefill import ChunkSize, shares


@given(pending_tokens=st.lists(st.integers(0, 50), max_size=8), chunk=st.integers(1, 60))
def test_all_of_a_chunk_is_used_and_nobody_gets_more_than_the_one_who_lacks_some(
    pending_tokens: list[int], chunk: int
) -> None:
    out = shares(pending_tokens, chunk)
    assert sum(out) == min(chunk, sum(pending_tokens))
    assert all(0 <= n <= left for n, left in zip(out, pending_tokens, strict=True))
    lacking = [n for n, left in zip(out, pending_tokens, strict=True) if n < left]
    if lacking:
        assert max(out) <= min(lacking) + 1


def test_a_short_prompt_behind_a_long_one_is_read_at_once() -> None:
    assert shares([6000, 20], 512) == [492, 20]


@pytest.mark.parametrize(
    ("token", "own", "most", "expected"),
    [
        (0.001, 0.01, 512, 150),  # what takes 0.15 seconds
        (0.001, 0.1, 512, 400),  # four passes
        (0.0001, 0.01, 512, 512),  # no more than the chunk
        (0.1, 0.01, 512, 16),  # no less than the least
        (0.1, 0.01, 8, 8),
    ],
)
def test_beside_others_a_piece_takes_no_longer_than_it_may(
    token: float, own: float, most: int, expected: int
) -> None:
    size = ChunkSize(most)
    for _ in range(100):
        size.update(1, 0, own)
        n = size.limit(1)
        size.update(1, n, own + token * n)
    assert abs(size.limit(1) - expected) <= 1


def test_a_machine_that_becomes_slower_is_learned() -> None:
    size = ChunkSize(512)
    size.update(0, 512, 0.1)
    assert size.limit(2) == 512
    for _ in range(40):
        size.update(0, 512, 5.12)
    assert size.limit(2) == 16
