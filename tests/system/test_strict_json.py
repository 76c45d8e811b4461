"""JSON of others: what is read as it is, what is mended, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.system.strict_json import DEEPEST, loads

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans())
def test_sane_json_is_read_as_it_is(value: Any, ascii_only: bool) -> None:
    said = json.dumps(value, ensure_ascii=ascii_only)
    assert loads(said) == loads(said.encode()) == value


@given(st.text())
def test_text_can_be_encoded_whatever_it_was(text: str) -> None:
    read = loads(json.dumps({text: [text]}))
    assert read == {text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"): list(read)}
    json.dumps(read, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("said", "read"),
    [
        (r'"\ud800"', "�"),
        (r'"\uDFFF x"', "� x"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\ude00\ud83d"', "��"),
        (r'"\ud83d\ud83d\ude00"', "�😀"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\\\ud800"', "\\�"),
        (r'"\n\ud800\""', '\n�"'),
    ],
)
def test_half_a_surrogate_pair_is_replaced(said: str, read: str) -> None:
    assert loads(said) == read


def test_brackets_count_where_they_nest_and_nowhere_else() -> None:
    flat = [json.dumps(["[{" * 500, '"[' * 500, "\\"]), json.dumps([[{}]] * 500)]
    for said in flat:
        assert loads(said) == json.loads(said)
    assert loads("[" * DEEPEST + "]" * DEEPEST) is not None


@pytest.mark.parametrize(
    "said",
    [
        "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1),
        "[" * 200_000,
        '{"a":' * 200_000,
        '["' + "\\\\" * 100_000 + '"' + "[" * 200_000,
        '"' + "[" * 200_000,
        "NaN",
        '{"a": -Infinity}',
        "[1e999]",
        "-1e999",
        "1" * 301,
        "[-" + "9" * 10_000 + "]",
        "",
        "{",
        b'"\xed\xa0\x80"',
        b"\xff\xfe\x00",
    ],
)
def test_the_rest_is_a_value_error_in_one_line(said: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"^.{1,200}$"):
        loads(said)


def test_numbers_that_a_float_holds_are_kept() -> None:
    assert loads("[1000000000000000019884624838656, 1e300, -0.5]") == [10**30 + 19884624838656, 1e300, -0.5]
