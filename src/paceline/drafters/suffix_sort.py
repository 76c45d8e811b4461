"""The builder of the files of suffix_array.py.

libdivsufsort (pydivsufsort, the optional extra `corpus`) sorts the suffixes of the text's bytes; those at
token boundaries are kept.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.suffix_array import ARRAY, INDEX, TEXT, VERSION
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.system.atomic import private_file

MAX_TEXT_BYTES = (1 << 31) - 1  # libdivsufsort has 32-bit positions
MEMORY_FACTOR = 6  # memory of sorting, as a multiple of the text's bytes
BLOCK_BYTES = 1 << 22
POLL_SECONDS = 0.1  # between calls of `check` while sorting

Tokens = Sequence[int] | NDArray[Any]


def build(
    folder: Path,
    documents: Iterable[Tokens],
    n_vocab: int,
    *,
    most: int = MAX_TEXT_BYTES,
    check: Callable[[], None] = lambda: None,
) -> int:
    """Write the datastore of `documents` into an existing private folder. Return its number of tokens.
    most: the most bytes of text to sort.
    check: called now and then; an exception stops the build and leaves a partial folder.
    Raises MissingExtraError without pydivsufsort, UsageError for an unsuitable corpus."""
    sort = sorter()
    kind = np.dtype(">u2" if n_vocab < 2**16 else ">u4")
    text, n_documents = _text(documents, n_vocab, most // kind.itemsize, check)
    length, n_tokens = len(text), len(text) - n_documents - 1
    backwards = text[::-1].astype(kind).view(np.uint8)
    del text
    with private_file(folder / TEXT) as file:
        file.write(backwards.data)
    with private_file(folder / ARRAY) as file:
        for places in _places(_sort_in_thread(sort, backwards, check), kind.itemsize):
            check()
            file.write(places.data)
    index = {
        "version": VERSION,
        "n_vocab": n_vocab,
        "width": kind.itemsize,
        "tokens": n_tokens,
        "documents": n_documents,
        "length": length,
    }
    with private_file(folder / INDEX) as file:
        file.write(json.dumps(index).encode())
    return n_tokens


def _text(
    documents: Iterable[Tokens], n_vocab: int, most: int, check: Callable[[], None]
) -> tuple[NDArray[np.uint32], int]:
    """Return one text, with 0 before, between and after the documents, and the number of documents."""
    border = np.zeros(1, np.uint32)
    parts, size, count = [border], 1, 0
    for document in documents:
        check()
        tokens = np.asarray(document, np.int64)
        if not tokens.size:
            continue
        assert 0 <= tokens.min() <= tokens.max() < n_vocab
        parts += [(tokens + 1).astype(np.uint32), border]
        size, count = size + len(tokens) + 1, count + 1
        if size > most:
            raise UsageError(
                f"the corpus has more than the {most:,} tokens that can be sorted in this machine's free "
                "memory: give fewer sources, or make several corpora"
            )
    assert count > 0, "an empty corpus"
    return np.concatenate(parts), count


def sorter() -> Callable[[NDArray[np.uint8]], NDArray[np.int32]]:
    """Return divsufsort. Raises MissingExtraError if it is not installed."""
    try:
        from pydivsufsort import divsufsort
    except ImportError as error:
        raise MissingExtraError(
            "building a datastore needs pydivsufsort: pip install 'paceline[corpus]', or leave it out with "
            "--kinds ngram"
        ) from error
    return divsufsort  # type: ignore[no-any-return]


def _sort_in_thread(
    sort: Callable[[NDArray[np.uint8]], NDArray[np.int32]], text: NDArray[np.uint8], check: Callable[[], None]
) -> NDArray[np.int32]:
    """Sort in a thread: a large text takes a minute in C code, which cannot be interrupted."""
    out: list[NDArray[np.int32]] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            out.append(sort(text))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="suffix array", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
        check()
    if failed:
        raise failed[0]
    return out[0]


def _places(order: NDArray[np.int32], width: int) -> Iterator[NDArray[np.uint32]]:
    """Yield the token positions in the order of their suffixes, in blocks."""
    for start in range(0, len(order), BLOCK_BYTES):
        some = order[start : start + BLOCK_BYTES]
        yield (some[some % width == 0] // width).astype("<u4")
