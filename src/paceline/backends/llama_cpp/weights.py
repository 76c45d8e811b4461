"""Token embeddings and output layer of a GGUF model, read from its files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.backends.interface import OutputHead
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.models.headers.header import split_part_paths
from paceline.speculative.errors import ModelError

EMBEDDINGS, OUTPUT, NORM = "token_embd.weight", "output.weight", "output_norm.weight"
RMS_EPSILON = "attention.layer_norm_rms_epsilon"  # models with another kind of norm lack the key


class ModelWeights:
    """The weights of the model whose first file is `path`. Raises ModelError for unreadable weights."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files = [GGUFFile(part) for part in split_part_paths(path)]

    @cached_property
    def _embeddings(self) -> TensorRows:
        return self._tensor(EMBEDDINGS)

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the rows of these tokens [n, hidden_size]."""
        return self._embeddings.rows(np.asarray(tokens, np.int64))

    def output_rows(self, own: str = "") -> TensorRows:
        """Return the rows of the output matrix [n_vocab, hidden_size]. own: a tensor that goes first."""
        names = (name for name in (own, OUTPUT) if self._find(name) is not None)
        return self._tensor(next(names, EMBEDDINGS))

    def output_head(self) -> OutputHead:
        first = self._files[0]
        is_rms = f"{first.text('general.architecture')}.{RMS_EPSILON}" in first.values
        has_norm = is_rms and self._find(NORM) is not None
        norm = self._tensor(NORM).rows(slice(None))[:, 0] if has_norm else None
        return OutputHead(norm, self.output_rows().rows(slice(None)))

    def _tensor(self, name: str) -> TensorRows:
        file = self._find(name)
        if file is None:
            raise ModelError(f"{self._path}: has no tensor {name}, which draft heads need")
        return TensorRows(file, file.tensors[name])

    def _find(self, name: str) -> GGUFFile | None:
        return next((file for file in self._files if name in file.tensors), None)
