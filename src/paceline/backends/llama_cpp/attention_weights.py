"""Attention of a pass, noted by ggml's evaluation callback (kernels/attention_weights.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.speculative_prefill import look_ahead
from paceline.speculative.errors import KernelError, ModelError

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


class PromptReader:
    """A context of its own for a model's attention. A cell is then at the position of its token."""

    def __init__(self, model: LlamaTarget) -> None:
        self._path = model.path
        try:
            function = kernels.attention_callback()
        except KernelError as error:
            raise ModelError(
                f"{self._path}: its attention needs Paceline's compiled library: {error}"
            ) from error
        self._target = model.with_shared_weights(
            n_ctx=model.caps.n_ctx, flash_attention=model.flash_attention
        )
        self._weights = _Weights()
        self._target.use_callback(binding.EvalCallback(function, self._weights))

    def attention(self, prompt: Sequence[int], steps: int) -> NDArray[np.float32]:
        """See ShowsAttention. Raises ModelError if llama.cpp's graph does not show attention."""
        return look_ahead(self._target, prompt, steps, self._noting)

    @contextmanager
    def _noting(self, row: NDArray[np.float32]) -> Iterator[None]:
        weights = self._weights
        weights.layers = weights.strange = 0
        weights.n, weights.most = len(row), row.ctypes.data
        try:
            yield
        finally:
            weights.most = None
        if weights.strange or not weights.layers:
            raise ModelError(
                f"{self._path}: llama.cpp's graph does not show what this model attends to: another draft "
                "model has to say which prompt tokens matter"
            )

    def forget(self) -> None:
        self._target.forget()

    def close(self) -> None:
        self._target.close()
