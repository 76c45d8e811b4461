"""Fields of what a server says: what is taken, and what is refused in a few words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.lab.peers.fields import count, counts, milliseconds, object_of, objects, text

READERS: tuple[Callable[[Any, str], Any], ...] = (text, count, counts, milliseconds, object_of, objects)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def test_what_is_missing_or_null_is_nothing() -> None:
    for said in ({}, {"x": None}):
        assert (text(said, "x"), counts(said, "x"), object_of(said, "x")) == ("", (), {})
        assert objects(said, "x") == []
    assert (milliseconds({}, "x"), count({}, "x", 3)) == (0.0, 3)


def test_what_fits_is_taken() -> None:
    said = {"n": 12, "f": 12.0, "t": "a", "l": [1, 2.0], "o": {"n": 1}, "os": [{}, {"n": 1}], "ms": 0.5}
    assert (count(said, "n"), count(said, "f"), text(said, "t"), counts(said, "l")) == (12, 12, "a", (1, 2))
    assert (object_of(said, "o"), objects(said, "os")) == ({"n": 1}, [{}, {"n": 1}])
    assert (milliseconds(said, "ms"), milliseconds(said, "n")) == (0.5, 12.0)
    assert type(count(said, "f")) is int


@pytest.mark.parametrize(
    ("reader", "value"),
    [
        (count, None),
        (count, -1),
        (count, 1.5),
        (count, True),
        (count, "12"),
        (count, 10**9 + 1),
        (count, 1e300),
        (count, float("nan")),
        (counts, [1, "2"]),
        (milliseconds, -0.1),
        (milliseconds, float("nan")),
        (milliseconds, None),
        (text, 7),
        (object_of, []),
        (object_of, "x" * 10**6),
        (objects, [{}, 1]),
    ],
)
def test_the_rest_is_refused_by_name(reader: Callable[[Any, str], Any], value: Any) -> None:
    with pytest.raises(ValueError, match=r"^field( is .{1,90}|\b.*)$"):
        reader({"field": value}, "field")


def test_a_part_is_no_more_than_the_whole() -> None:
    assert count({"x": 3}, "x", most=3) == 3
    with pytest.raises(ValueError, match="x is 4"):
        count({"x": 4}, "x", most=3)


@given(JSON)
def test_nothing_else_is_ever_raised(value: Any) -> None:
    for reader in READERS:
        try:
            json.dumps(reader({"x": value}, "x"))
        except ValueError as error:
            assert str(error).startswith("x is ")  # noqa: PT017
