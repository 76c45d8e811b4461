"""A chunk is shared by all that read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.chunks import shares


@given(unread=st.lists(st.integers(0, 50), max_size=8), chunk=st.integers(1, 60))
def test_all_of_a_chunk_is_used_and_nobody_gets_more_than_the_one_who_lacks_some(
    unread: list[int], chunk: int
) -> None:
    out = shares(unread, chunk)
    assert sum(out) == min(chunk, sum(unread))
    assert all(0 <= n <= left for n, left in zip(out, unread, strict=True))
    lacking = [n for n, left in zip(out, unread, strict=True) if n < left]
    if lacking:
        assert max(out) <= min(lacking) + 1


def test_a_short_prompt_behind_a_long_one_is_read_at_once() -> None:
    assert shares([6000, 20], 512) == [492, 20]
