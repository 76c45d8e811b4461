"""Names of views on the command line."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.views import ModelView, evenly_spaced_view, parse_view
from paceline.models.names import is_view
from paceline.speculative.errors import UsageError

LAYERS = 12


def test_words_mean_blocks() -> None:
    assert parse_view("view:exit=5", LAYERS) == ModelView(5)
    assert parse_view("view:attention=3.5,feed_forward=9", LAYERS) == ModelView(
        0, frozenset([3, 5]), frozenset([9])
    )
    assert parse_view("view:", LAYERS) is None
    assert is_view("view:")
    assert not is_view("views/model.gguf")


@given(st.integers(4, 80), st.data())
def test_blocks_are_left_out_evenly(layers: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 2 * (layers - 2)))
    view = evenly_spaced_view(layers, n)
    assert view.n_skipped_blocks(layers) == n
    assert view.feed_forward <= view.attention
    assert not view.attention & {0, layers - 1}
    places = sorted(view.attention)
    gaps = [after - before for before, after in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    assert parse_view(f"view:skip={n}", layers) == view


@pytest.mark.parametrize(
    "wrong",
    [
        "view:exit", "view:exit=", "view:exit=-1", "view:exit=2,exit=3", "view:exit=2.3", "view:layers=3",
        "view:skip=4,exit=3", "view:attention=1.", "view:,", "view:exit=٣",
        "view:skip=" + "1" * 5000, "view:attention=2." + "1" * 5000, "view:skip=1.2",
    ],
)  # fmt: skip
def test_other_words_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="write view:mtp, view:exit=N"):
        parse_view(wrong, LAYERS)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("view:exit=13", "has 12 layers, numbered from 0"),
        ("view:attention=12", "has 12 layers, numbered from 0"),
        ("view:skip=21", "1 to 20 blocks can be left out"),
        ("view:skip=0", "1 to 20 blocks can be left out"),
        ("view:exit=0", "at least one layer"),
    ],
)
def test_blocks_that_are_not_there_are_refused(wrong: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_view(wrong, LAYERS)
