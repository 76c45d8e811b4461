"""Tokens to text: whole characters, and never a part of a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.text.detokenizer import Detokenizer


def run(pieces: Sequence[bytes], stops: Sequence[str] = ()) -> tuple[list[str], int | None]:
    """Return the text that each token releases (the flush last), and the token that ended it."""
    stream = Detokenizer(lambda token: pieces[token], stops)
    out: list[str] = []
    for token in range(len(pieces)):
        stopped = stream(token)
        out.append("".join(text for text, _ in (stream.finish() if stopped else stream.take_text())))
        if stopped:
            return out, token
    return [*out, "".join(text for text, _ in stream.finish())], None


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert run([b"a", b"\xe2\x82"]) == (["a", "", "\ufffd"], None)


def test_each_part_knows_the_token_it_came_with() -> None:
    stream = Detokenizer(lambda token: [b"ab", b"c", b"d"][token], ["cx"])
    stream(0)
    stream(1)
    assert stream.take_text() == [("ab", 0)]
    stream(2)
    assert stream.take_text() == [("c", 1), ("d", 2)]


@pytest.mark.parametrize(
    ("min_tokens", "stopped", "text"),
    [(0, 2, "a"), (1, 2, "a"), (3, 5, "abcx"), (4, 5, "abcx"), (5, 5, "abcx"), (6, None, "abcxbc")],
)
def test_stop_string_counts_once_it_ends_after_the_least_tokens(
    min_tokens: int, stopped: int | None, text: str
) -> None:
    pieces = [b"a", b"b", b"c", b"x", b"b", b"c"]
    stream = Detokenizer(pieces.__getitem__, ["bc"], min_tokens)
    ends = [at for at in range(6) if stream(at)]
    assert (ends[0] if ends else None) == stopped
    assert "".join(part for part, _ in stream.finish()) == text


@given(
    text=st.text(alphabet="abE€", max_size=30),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    stops=st.lists(st.text(alphabet="abE€", min_size=1, max_size=4), max_size=3),
)
def test_however_the_bytes_are_cut_the_text_ends_before_the_first_stop_string_completed(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(c % (len(data) + 1) for c in cuts)})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    out, stopped = run(pieces, stops)
    got = "".join(out)
    if stopped is None:
        assert got == text
        assert not any(stop in text for stop in stops)
    else:
        seen = b"".join(pieces[: stopped + 1]).decode(errors="ignore")
        assert got == seen[: min(at for s in stops if (at := seen.find(s)) >= 0)]
