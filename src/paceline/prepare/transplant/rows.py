"""Computing a target token's row from the rows of its pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.models.headers.gguf_file import TensorRows
from paceline.prepare.transplant.pieces import TokenPieces

Rows = NDArray[np.float32]
CHUNK_ROWS = 1024
SEVERAL = 0.7  # how far from the average row that of several pieces is written (docs/transplant.md)


def mean_row(table: TensorRows) -> Rows:
    """Return the mean of all rows."""
    total = np.zeros(table.width)
    for start in range(0, table.size, CHUNK_ROWS):
        total += table.rows(slice(start, start + CHUNK_ROWS)).sum(0, dtype=np.float64)
    return (total / table.size).astype(np.float32)


def transplanted(table: TensorRows, pieces: TokenPieces, *, read: bool) -> Iterator[Rows]:
    """Yield the new table, at most CHUNK_ROWS rows at a time.

    read: an embedding, in which a token has its last piece's row. Else an output matrix, in which it has the
    mean of its pieces' rows, drawn towards the mean of all rows where they are several: a mean of likely
    pieces says more than the draft knows of the token. Quiet tokens have the mean of all rows, so that they
    are never likelier than the average token.
    """
    mean = mean_row(table)
    for start in range(0, len(pieces), CHUNK_ROWS):
        starts = pieces.starts[start : min(start + CHUNK_ROWS, len(pieces)) + 1]
        lengths, first, last = np.diff(starts), int(starts[0]), int(starts[-1])
        out = np.repeat(mean[None], len(lengths), axis=0)
        some = lengths > 0
        if last > first and read:
            out[some] = table.rows(pieces.ids[starts[1:][some] - 1])
        elif last > first:
            used, places = np.unique(pieces.ids[first:last], return_inverse=True)
            sums = np.add.reduceat(table.rows(used)[places], starts[:-1][some] - first, axis=0)
            out[some] = sums / lengths[some, None].astype(np.float32)
        if not read:
            out[lengths > 1] = mean + np.float32(SEVERAL) * (out[lengths > 1] - mean)
            out[pieces.quiet[start : start + len(lengths)]] = mean
        yield out
