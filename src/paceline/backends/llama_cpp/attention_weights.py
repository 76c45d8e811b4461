"""Attention of a pass, noted by ggml's evaluation callback (kernels/attention_weights.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp.extras import EvalCallback
from paceline.speculative.errors import ModelError


class _Weights(ctypes.Structure):
    """The struct Weights of attention_weights.cpp."""

    _fields_ = (
        ("most", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("layers", ctypes.c_int32),
        ("strange", ctypes.c_int32),
    )


class AttentionWeights(EvalCallback):
    """Notes what the passes of a context attend to, in which a cell is at the position of its token.
    Raises ModelError without Paceline's compiled library."""

    purpose = "attention weights"
    function = "paceline_attention_weights_capture"

    def __init__(self, path: Path) -> None:
        self._weights = _Weights()
        super().__init__(path, self._weights)
        self.load()

    @contextmanager
    def into(self, row: NDArray[np.float32]) -> Iterator[None]:
        """Note the attention of the pass within it in `row` [prompt tokens]. Raises ModelError if llama.cpp's
        graph does not show attention."""
        weights = self._weights
        weights.layers = weights.strange = 0
        weights.n, weights.most = len(row), row.ctypes.data
        try:
            yield
        finally:
            weights.most = None
        if weights.strange or not weights.layers:
            raise ModelError(
                f"{self._path}: llama.cpp's graph does not show what this model attends to: choose another "
                "draft model to select prompt tokens"
            )
