"""Embeddings of texts, by a further context of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.batch import Batch

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget

ROWS = 128  # of a pass: llama.cpp keeps the logits of each, too
POOLING_NONE = 0  # LLAMA_POOLING_TYPE_NONE: pooled texts would have to be computed in one pass


def _show_states(params: Any) -> None:
    params.embeddings, params.pooling_type, params.n_ubatch = True, POOLING_NONE, ROWS


class EmbeddingContext:
    """A context with a cache of its own, whose passes output states. Close it before the model."""

    def __init__(self, target: LlamaTarget, settings: Any) -> None:
        self._width = target.hidden_size
        own_kernels.set_enabled(settings.kernels)
        sizes: Any = {"n_ctx": target.caps.n_ctx, "sequences": 1, "rows": ROWS, "n_batch": ROWS}
        make, model = binding.make_context, target.model.pointer
        self._context = make(model, target.path, settings, changes=[_show_states], **sizes)
        self._batch = Batch(ROWS, ROWS, target.vocab.size, path=target.path, kernels=settings.kernels)

    def mean(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the mean of the tokens' states after the last layer and its norm."""
        cpp, total = binding.llama_cpp(), np.zeros(self._width, np.float64)
        cpp.llama_memory_clear(cpp.llama_get_memory(self._context), True)
        for start in range(0, len(tokens), ROWS):
            self._batch.clear(all_outputs=True)
            for position, token in enumerate(tokens[start : start + ROWS], start):
                self._batch.add(token, position, [0], wanted=True)
            self._batch.decode(self._context)
            shape = len(self._batch), self._width
            total += np.ctypeslib.as_array(cpp.llama_get_embeddings(self._context), shape).sum(axis=0)
        return (total / len(tokens)).astype(np.float32)

    def close(self) -> None:
        binding.free_context(self._context)
