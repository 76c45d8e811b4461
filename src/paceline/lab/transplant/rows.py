"""New rows from old ones: each target token's is a weighted mean of its pieces' rows."""

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


def weights(starts: NDArray[np.int64], decay: float, *, from_end: bool) -> Rows:
    """One a piece: decay ** k for the k-th from the end (or from the beginning), summing to 1 for each token.
    decay 0: that piece alone; 1: the mean."""
    lengths = np.diff(starts)
    place = np.arange(int(starts[-1])) - np.repeat(starts[:-1], lengths)
    raw = np.power(float(decay), np.repeat(lengths, lengths) - 1 - place if from_end else place)
    sums = np.bincount(np.repeat(np.arange(len(lengths)), lengths), raw, len(lengths))
    return np.asarray(raw / np.repeat(sums, lengths), np.float32)


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


def transplanted(
    table: Table, pieces: Pieces, decay: float, *, read: bool, scale: float = 1.0
) -> Iterator[Rows]:
    """The new table, at most CHUNK_ROWS rows at a time. read: an embedding, weighted from the last piece;
    else
    an output matrix, weighted from the first one: in it quiet tokens have the mean of all old rows, so that
    they are never likelier than the average token, and one of several pieces is drawn towards that mean
    (scale 0: it is that mean), since a mean of likely pieces says more than the draft knows of the token."""
    mean = table.mean()
    weight = weights(pieces.starts, decay, from_end=read)
    for start in range(0, len(pieces), CHUNK_ROWS):
        starts = pieces.starts[start : min(start + CHUNK_ROWS, len(pieces)) + 1]
        lengths, first, last = np.diff(starts), int(starts[0]), int(starts[-1])
        out = np.repeat(mean[None], len(lengths), axis=0)
        if last > first:
            used, places = np.unique(pieces.ids[first:last], return_inverse=True)
            parts = table.rows(used)[places] * weight[first:last, None]
            out[lengths > 0] = np.add.reduceat(parts, starts[:-1][lengths > 0] - first, axis=0)
        if not read:
            out[lengths > 1] = mean + np.float32(scale) * (out[lengths > 1] - mean)
            out[pieces.quiet[start : start + len(lengths)]] = mean
        yield out
