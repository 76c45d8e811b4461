"""The suffix array against brute force, and its errors for unusable files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters import suffix_sort
from paceline.drafters.suffix_array import INDEX, SuffixArray
from paceline.drafters.suffix_sort import build
from paceline.speculative.errors import ModelError, UsageError

Documents = Sequence[Sequence[int]]
DEPTH = 4
TEXT = [[1, 2, 3, 4, 1, 2, 3, 5], [2, 3, 4]]
tokens = st.sampled_from([0, 1, 2, 300, 9_000])
documents = st.lists(st.lists(tokens, max_size=30), min_size=1, max_size=5).filter(any)
vocabularies = st.sampled_from([9_001, 65_535, 65_536, 152_000])


def made(folder: Path, documents: Documents = TEXT, n_vocab: int = 10, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    build(folder, documents, n_vocab, **options)
    return folder


def occurrences(documents: Documents, context: Sequence[int]) -> tuple[int, Counter[tuple[int, ...]]]:
    """Return the length of the longest ending found in a document, and its continuations."""
    for n in range(len(context), 0, -1):
        end = list(context[-n:])
        found = Counter(
            tuple(document[i + n : i + n + DEPTH])
            for document in documents
            for i in range(len(document) - n + 1)
            if list(document[i : i + n]) == end
        )
        if found:
            return n, found
    return 0, Counter()


def looked_up(store: SuffixArray, context: Sequence[int]) -> tuple[int, Counter[tuple[int, ...]]]:
    """Return the same from the store."""
    match = store.find(store.encode(context))
    found: Counter[tuple[int, ...]] = Counter()
    for data, n in store.sample_continuations(match, 10**6, DEPTH).items() if match.length else ():
        found[tuple(token - 1 for token in store.decode(data))] += n
    return match.length, found


@given(documents=documents, context=st.lists(tokens, max_size=8), n_vocab=vocabularies)
@settings(max_examples=150, deadline=None)
def test_it_finds_every_place_of_the_longest_ending_and_what_followed(
    documents: Documents, context: Sequence[int], n_vocab: int
) -> None:
    with TemporaryDirectory() as folder:
        assert build(Path(folder), documents, n_vocab) == sum(map(len, documents))
        store = SuffixArray(folder)
        assert (store.n_vocab, store.tokens) == (n_vocab, sum(map(len, documents)))
        assert looked_up(store, context) == occurrences(documents, context)
        store.close()


def test_a_token_that_no_corpus_can_have_ends_the_query(tmp_path: Path) -> None:
    store = SuffixArray(made(tmp_path))
    for stranger in (65_535, 2**40, -1):
        assert looked_up(store, [2, stranger, 3]) == (1, Counter({(4, 1, 2, 3): 1, (5,): 1, (4,): 1}))
        assert looked_up(store, [stranger]) == (0, Counter())
    store.close()


def test_a_folder_without_a_datastore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is missing or damaged.*build the corpus again"):
        SuffixArray(tmp_path)


@pytest.mark.parametrize("name", ["text", "array"])
@pytest.mark.parametrize("size", [None, 0, 3])
def test_a_file_that_is_cut_short_or_gone_is_told_by_its_name(
    tmp_path: Path, name: str, size: int | None
) -> None:
    path = made(tmp_path) / name
    whole = path.read_bytes()
    path.unlink() if size is None else path.write_bytes(whole[:size])
    with pytest.raises(ModelError, match=rf"{name}: has {size or 0} bytes instead of {len(whole)}"):
        SuffixArray(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"version": 0}, {"version": "2"}, {"width": 3}, {"length": 0}, {"length": "12"}, {"n_vocab": None}],
)
def test_a_damaged_index_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    path = made(tmp_path) / INDEX
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match="of another version; build the corpus again"):
        SuffixArray(tmp_path)


def test_places_are_sampled_evenly_from_all_over_the_range(tmp_path: Path) -> None:
    """The 100 places are in the order of their continuations."""
    store = SuffixArray(made(tmp_path, [[i, 200, i] for i in range(100)], 256))
    match = store.find(store.encode([200]))
    assert (match.length, match.high - match.low) == (1, 100)
    said = [store.decode(data)[0] - 1 for data in store.sample_continuations(match, 4, DEPTH)]
    assert said == [0, 25, 50, 75]
    store.close()


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
    """The file format of docs/corpus.md."""
    build(tmp_path, [[0, 1], [300]], 400)
    text = np.fromfile(tmp_path / "text", ">u2")
    assert text.tolist() == [0, 301, 0, 2, 1, 0]
    places = np.fromfile(tmp_path / "array", "<u4")
    suffixes = [text[place:].tolist() for place in places]
    assert suffixes == sorted(suffixes)
    assert len(places) == len(text)
