"""New rows from old ones: each target token's comes from its pieces' rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ModelError
from paceline.lab.transplant.gguf_file import GGUFFile, block_size
from paceline.lab.transplant.pieces import Pieces
from paceline.machine.models.gguf_header import Tensor

Rows = NDArray[np.float32]
CHUNK_ROWS = 1024
SEVERAL = 0.7  # how far from the average row that of several pieces is written (docs/transplant.md)


class Table:
    """A tensor with a row (or, as a bias, a number) for each of the draft's tokens, read row by row. Raises
    ModelError for a type of weights that cannot be read here."""

    def __init__(self, file: GGUFFile, tensor: Tensor) -> None:
        import gguf

        self.name, self.size = tensor.name, tensor.shape[-1]
        self.dims = tensor.shape[:-1]
        self.width = tensor.shape[0] if self.dims else 1
        elements, size = block_size(tensor.type)
        # A mapping, of which only the rows asked for are read.
        self._data = file.weights(tensor).reshape(self.size, self.width // elements * size)
        try:
            self.type = gguf.GGMLQuantizationType(tensor.type)
            self.rows(np.zeros(1, np.int64))
        except (ValueError, NotImplementedError) as error:
            raise ModelError(
                f"{file.path}: {tensor.name} has weights of type {tensor.type}, which cannot be read here; "
                "take the draft as F16 or Q8_0"
            ) from error

    def rows(self, ids: NDArray[np.int64]) -> Rows:
        """[len(ids), width]; of a bias one column."""
        import gguf

        return np.asarray(gguf.quants.dequantize(self._data[ids], self.type), np.float32)

    def mean(self) -> Rows:
        total = np.zeros(self.width)
        for start in range(0, self.size, CHUNK_ROWS):
            ids = np.arange(start, min(start + CHUNK_ROWS, self.size))
            total += self.rows(ids).sum(0, dtype=np.float64)
        return (total / self.size).astype(np.float32)


def transplanted(table: Table, pieces: Pieces, *, read: bool) -> Iterator[Rows]:
    """The new table, at most CHUNK_ROWS rows at a time.

    read: an embedding, in which a token has its last piece's row. Else an output matrix, in which it has the
    mean of its pieces' rows, drawn towards the mean of all rows where they are several: a mean of likely
    pieces says more than the draft knows of the token. Quiet tokens have the mean of all rows, so that they
    are never likelier than the average token.
    """
    mean = table.mean()
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
