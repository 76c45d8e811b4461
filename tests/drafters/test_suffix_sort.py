"""Building datastores: what is refused, and how it ends early. What is in them: test_suffix_array.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from paceline.drafters import suffix_sort
from paceline.drafters.suffix_array import INDEX
from paceline.drafters.suffix_sort import build
from paceline.speculative.errors import UsageError

Documents = Sequence[Sequence[int]]
TEXT = [[1, 2, 3, 4, 1, 2, 3, 5], [2, 3, 4]]


@pytest.mark.parametrize("documents", [[], [[]], [[], []]])
def test_nothing_to_store_is_refused(tmp_path: Path, documents: Documents) -> None:
    with pytest.raises(UsageError, match="the corpus is empty: give sources"):
        build(tmp_path, documents, 10)


@pytest.mark.parametrize("stranger", [10, -1, 2**33])
def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path, stranger: int) -> None:
    with pytest.raises(UsageError, match="outside the vocabulary of 10"):
        build(tmp_path, [[1, 2], [stranger]], 10)


def test_more_than_can_be_sorted_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than the 10 tokens that can be sorted"):
        build(tmp_path, TEXT, 10, most=20)
    assert not (tmp_path / INDEX).exists()


def test_building_can_be_stopped_while_it_sorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sorting, stopped = Event(), Event()

    def sorter(text: Any) -> Any:
        sorting.set()
        assert stopped.wait(60)
        return np.zeros(len(text), np.int32)

    def check() -> None:
        if sorting.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(suffix_sort, "sorter", lambda: sorter)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, TEXT, 10, check=check)
    stopped.set()
    assert not (tmp_path / INDEX).exists()


def test_the_text_is_backwards_with_borders_and_the_array_in_order(tmp_path: Path) -> None:
    """What docs/corpus.md says of the files."""
    build(tmp_path, [[0, 1], [300]], 400)
    text = np.fromfile(tmp_path / "text", ">u2")
    assert text.tolist() == [0, 301, 0, 2, 1, 0]
    places = np.fromfile(tmp_path / "array", "<u4")
    suffixes = [text[place:].tolist() for place in places]
    assert suffixes == sorted(suffixes)
    assert len(places) == len(text)
