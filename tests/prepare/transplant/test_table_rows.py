"""New rows are the stated weighted means for every chunk size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_files import write_llama
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.prepare.transplant import TokenPieces, transplant_rows

spellings = st.lists(st.lists(st.integers(0, 257), max_size=5), min_size=1, max_size=30)


def pieces_of(spelled: list[list[int]], quiet: tuple[int, ...] = ()) -> TokenPieces:
    starts = np.cumsum([0, *map(len, spelled)])
    ids = np.array([piece for one in spelled for piece in one], np.int64)
    return TokenPieces(ids, starts, np.isin(np.arange(len(spelled)), quiet), {})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TensorRows:
    """Return 258 rows of 64."""
    file = GGUFFile(write_llama(tmp_path_factory.mktemp("rows") / "model.gguf"))
    return TensorRows(file, file.tensors["output.weight"])


@given(spellings, st.integers(1, 7), st.booleans())
def test_chunks_make_no_difference_and_rows_are_those_of_pieces(
    table: TensorRows, spelled: list[list[int]], chunk: int, read: bool
) -> None:
    old, pieces = table.rows(np.arange(table.size)), pieces_of(spelled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.prepare.transplant.CHUNK_ROWS", chunk)
        made = np.concatenate(list(transplant_rows(table, pieces, read=read)))
    mean = old.mean(0)

    def expected(one: list[int]) -> Any:
        if not one:
            return mean
        if read or len(one) == 1:
            return old[one[-1]]
        return mean + 0.7 * (old[one].mean(0) - mean)

    assert np.allclose(made, [expected(one) for one in spelled], atol=1e-5)


def test_only_quiet_tokens_are_average_where_they_are_written(table: TensorRows) -> None:
    old, pieces = table.rows(np.arange(table.size)), pieces_of([[5, 6], [7], [8]], quiet=(2,))
    (written,) = transplant_rows(table, pieces, read=False)
    assert np.array_equal(written[1], old[7])
    assert np.allclose(written[2], old.mean(0), atol=1e-6)
    (read,) = transplant_rows(table, pieces, read=True)
    assert np.array_equal(read, old[[6, 7, 8]])
