"""New rows are the weighted means that they are said to be, however they are cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_files import write_llama
from paceline.lab.transplant import rows as module
from paceline.lab.transplant.gguf_file import GGUFFile
from paceline.lab.transplant.pieces import Pieces
from paceline.lab.transplant.rows import Table, transplanted, weights

spellings = st.lists(st.lists(st.integers(0, 257), max_size=5), min_size=1, max_size=30)


def pieces_of(spelled: list[list[int]], quiet: tuple[int, ...] = ()) -> Pieces:
    starts = np.cumsum([0, *map(len, spelled)])
    ids = np.array([piece for one in spelled for piece in one], np.int64)
    return Pieces(ids, starts, np.isin(np.arange(len(spelled)), quiet), {})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """258 rows of 64."""
    file = GGUFFile(write_llama(tmp_path_factory.mktemp("rows") / "model.gguf"))
    return Table(file, file.tensors["output.weight"])


@given(spellings, st.floats(0, 1), st.booleans())
def test_the_weights_of_a_token_sum_to_one_and_fall_by_the_decay(
    spelled: list[list[int]], decay: float, from_end: bool
) -> None:
    pieces = pieces_of(spelled)
    weight = weights(pieces.starts, decay, from_end=from_end)
    for one, start in zip(spelled, pieces.starts, strict=False):
        own = weight[start : start + len(one)][:: -1 if from_end else 1]
        assert not one or abs(own.sum() - 1) < 1e-5
        assert np.allclose(own[1:], own[:-1] * decay, atol=1e-6)


@given(spellings, st.integers(1, 7), st.booleans())
def test_chunks_make_no_difference_and_rows_are_means(
    table: Table, spelled: list[list[int]], chunk: int, read: bool
) -> None:
    old, pieces = table.rows(np.arange(table.size)), pieces_of(spelled)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ROWS", chunk)
        made = np.concatenate(list(transplanted(table, pieces, 1.0, read=read)))
    expected = [old[one].mean(0) if one else old.mean(0) for one in spelled]
    assert np.allclose(made, expected, atol=1e-5)


def test_decay_zero_reads_the_last_piece_and_writes_the_first(table: Table) -> None:
    old, pieces = table.rows(np.arange(table.size)), pieces_of([[5, 6, 7]])
    (read,) = transplanted(table, pieces, 0.0, read=True)
    (written,) = transplanted(table, pieces, 0.0, read=False)
    assert np.array_equal(read[0], old[7])
    assert np.allclose(written[0], old[5], atol=1e-6)  # through the mean and back


def test_only_written_tokens_of_several_pieces_are_scaled_and_quiet_ones_are_average(table: Table) -> None:
    old, pieces = table.rows(np.arange(table.size)), pieces_of([[5, 6], [7], [8]], quiet=(2,))
    (written,) = transplanted(table, pieces, 1.0, read=False, scale=0.5)
    mean = old.mean(0)
    assert np.allclose(written[0], mean + 0.5 * (old[[5, 6]].mean(0) - mean), atol=1e-6)
    assert np.array_equal(written[1], old[7])
    assert np.allclose(written[2], mean, atol=1e-6)
    (read,) = transplanted(table, pieces, 1.0, read=True, scale=0.5)
    assert np.allclose(read[0], old[[5, 6]].mean(0), atol=1e-6)
    assert np.array_equal(read[2], old[8])
