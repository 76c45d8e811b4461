"""Attention of a pass, noted by ggml's evaluation callback (kernels/attention_weights.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp.extras import EvalCallback
from paceline.backends.speculative_prefill import look_ahead
from paceline.speculative.errors import ModelError

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget


class _Weights(ctypes.Structure):
    """The struct Weights of attention_weights.cpp."""

    _fields_ = (
        ("most", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("layers", ctypes.c_int32),
        ("strange", ctypes.c_int32),
    )


class AttentionWeights(EvalCallback):
    """Notes what the passes of a context attend to. Raises ModelError without Paceline's compiled library."""

    purpose = "attention weights"
    function = "paceline_attention_weights_capture"

    def __init__(self, path: Path) -> None:
        self._weights = _Weights()
        super().__init__(path, self._weights)
        self.load()

    @contextmanager
    def into(self, row: NDArray[np.float32]) -> Iterator[None]:
        """Note the attention of the pass within it in `row` [prompt tokens]."""
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


class PromptReader:
    """A context of its own for a model's attention, in which a cell is at the position of its token."""

    def __init__(self, model: LlamaTarget) -> None:
        self._weights = AttentionWeights(model.path)
        self._target = model.with_shared_weights(
            n_ctx=model.caps.n_ctx,
            flash_attention=model.settings["flash_attention"],
            extras=[self._weights],
        )

    def attention(self, prompt: Sequence[int], steps: int) -> NDArray[np.float32]:
        """See ShowsAttention. Raises ModelError if llama.cpp's graph does not show attention."""
        return look_ahead(self._target, prompt, steps, self._weights.into)

    def forget(self) -> None:
        self._target.forget()

    def close(self) -> None:
        self._target.close()
