"""Multi-token prediction as llama.cpp's own driver does it, on llama.cpp's functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as cpp
from llama_cpp import llama_cpp_ext as ext

from paceline.backends.llama_cpp import LlamaTarget

ROUNDING = 3e-4  # passes of other shapes; a wrong row moves logits by far more
MAX_ROWS = 32
States = Sequence[np.ndarray] | np.ndarray


class Context:
    """A context of llama.cpp, decoded by its own functions. Every row has outputs, unless they are masked.
    layers: the model of MTP layers that have a file of their own. other: the context that they read."""

    def __init__(
        self,
        target: LlamaTarget,
        *,
        mtp: bool,
        masked: bool = False,
        layers: Any = None,
        other: Context | None = None,
    ) -> None:
        params = cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 128, MAX_ROWS, MAX_ROWS, 1
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = params.swa_full = True
        params.type_k = params.type_v = cpp.GGML_TYPE_F32
        params.flash_attn_type = 0
        if mtp:
            params.ctx_type = cpp.LLAMA_CONTEXT_TYPE_MTP
            params.ctx_other = None if other is None else other._context
        model = target.model.pointer if layers is None else layers
        self._shapes = target.vocab.size, int(cpp.llama_model_n_embd_out(model))
        self._context: Any = cpp.llama_init_from_model(model, params)
        self.memory = cpp.llama_get_memory(self._context)
        ext.llama_set_embeddings_nextn(self._context, True, masked)
        self._masked = masked

    def close(self) -> None:
        cpp.llama_free(self._context)

    def select(self, layer: int) -> None:
        ext.llama_set_nextn_layer_offset(self._context, layer)

    def remove(self, start: int) -> None:
        cpp.llama_memory_seq_rm(self.memory, 0, start, -1)

    def decode(
        self, tokens: Sequence[int], states: States | None = None, start: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The logits and the hidden states of rows from `start` on; of the last row, if they are masked."""
        n, zero = len(tokens), (ctypes.c_int32 * 1)(0)
        inputs = None if states is None else np.ascontiguousarray(states, np.float32)
        batch = cpp.llama_batch(
            n_tokens=n,
            token=(ctypes.c_int32 * n)(*tokens),
            embd=None if inputs is None else inputs.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * n)(*range(start, start + n)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * n)(
                *[ctypes.cast(zero, ctypes.POINTER(ctypes.c_int32))] * n
            ),
            logits=(ctypes.c_int8 * n)(*[not self._masked] * (n - 1), 1),
        )
        assert cpp.llama_decode(self._context, batch) == 0
        rows = [n - 1] if self._masked else range(n)
        vocab, width = self._shapes

        def read(pointer: Any, size: int) -> np.ndarray:
            return np.ctypeslib.as_array(pointer, (size,)).copy()

        return (
            np.stack([read(cpp.llama_get_logits_ith(self._context, i), vocab) for i in rows]),
            np.stack([read(ext.llama_get_embeddings_nextn_ith(self._context, i), width) for i in rows]),
        )


class Driver:
    """One text in the layers, as llama.cpp's common_speculative_impl_draft_mtp (common/speculative.cpp) has
    it: the first token has a state of zeros."""

    def __init__(self, target: LlamaTarget, layers: int) -> None:
        self.context, self.layers = Context(target, mtp=True), layers

    def process(self, tokens: Sequence[int], states: States, start: int) -> None:
        """Every layer computes the text."""
        for layer in range(self.layers):
            self.context.remove(start)
            self.context.select(layer)
            self.context.decode(tokens, states, start)

    def draft(self, root: int, state: np.ndarray, start: int, drafted: Sequence[int]) -> np.ndarray:
        """The rows of the root and of drafted tokens: the layers' output is their next input."""
        tokens, states, rows = [root, *drafted], [state], list[np.ndarray]()
        for i in range(len(tokens)):
            if self.layers > 1:  # one after another, which computes the tokens before its own again
                self.context.remove(start)
                self.context.select(i)
                logits, outputs = self.context.decode(tokens[: i + 1], states, start)
            else:
                logits, outputs = self.context.decode(tokens[i : i + 1], states[-1:], start + i)
            rows.append(logits[-1])
            states.append(outputs[-1])
        self.context.remove(start)
        return np.stack(rows)
