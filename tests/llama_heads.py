"""Draft heads computed by llama.cpp's own graphs, which are fed as common/speculative.cpp feeds them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.llama_cpp_ext as ext
import numpy as np
from llama_cpp import llama_cpp as low

N_CTX = 128


class LlamaHead:
    """A head's context. width: of its hidden states."""

    def __init__(self, context: Any, width: int, n_vocab: int) -> None:
        self._context, self._width, self._n_vocab = context, width, n_vocab
        ext.llama_set_embeddings_nextn(context, True, True)

    def _process(self, kind: int, rows: Sequence[tuple[int | None, Any, int]], *, outputs: bool) -> None:
        """Compute rows of token, embedding and position; a token or an embedding may be missing."""
        batch = low.llama_batch_ext_init(self._context)
        kept = []
        for token, state, position in rows:
            data = None if state is None else np.ascontiguousarray(state, np.float32)
            kept.append(data)
            if data is not None:
                pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
                embedding = low.llama_embd(pointer, 1, data.size)
            if token is None:
                index = low.llama_batch_ext_add_embd(batch, 0, embedding)
            else:
                index = low.llama_batch_ext_add_token(batch, 0, token)
                assert data is None or low.llama_batch_ext_set_embd_token(batch, index, embedding)
            assert index >= 0
            assert low.llama_batch_ext_set_pos(batch, index, ctypes.byref(low.llama_pos(position)))
            assert low.llama_batch_ext_set_output_logits(batch, index, outputs)
        assert low.llama_process(self._context, kind, batch) == 0
        low.llama_batch_ext_free(batch)

    def _states(self, n: int) -> Any:
        pointer = ext.llama_get_embeddings_nextn(self._context)
        return np.ctypeslib.as_array(pointer, (n, self._width)).copy()

    def _logits(self, row: int) -> Any:
        pointer = low.llama_get_logits_ith(self._context, row)
        return np.ctypeslib.as_array(pointer, (self._n_vocab,)).copy()

    def eagle3(self, features: Any, tokens: Sequence[int], drafted: Sequence[int]) -> list[Any]:
        """Return the logits behind the last token and behind the drafted ones.
        features: [tokens - 1, layers * width], of all tokens but the last."""
        n = len(features)
        self._process(low.LLAMA_PROCESS_TYPE_ENCODE, [(None, features[i], i) for i in range(n)], outputs=True)
        fused = self._states(n)
        rows = [(tokens[i + 1], fused[i], i) for i in range(n)]
        if n > 1:
            self._process(low.LLAMA_PROCESS_TYPE_DECODE, rows[:-1], outputs=False)
        found, row = [], rows[-1]
        for token in (*drafted, None):
            self._process(low.LLAMA_PROCESS_TYPE_DECODE, [row], outputs=True)
            found.append(self._logits(0))
            if token is not None:
                row = (token, self._states(1)[0], row[2] + 1)
        return found

    def block(self, features: Any, root: int, mask: int, n: int, *, causal: bool = False) -> list[Any]:
        """Return the logits of a block of `n` tokens behind the features' text."""
        low.llama_set_causal_attn(self._context, causal)
        start = len(features)
        rows = [(None, features[i], i) for i in range(start)]
        self._process(low.LLAMA_PROCESS_TYPE_DECODE, rows, outputs=False)
        block = [(mask if i else root, None, start + i) for i in range(n)]
        self._process(low.LLAMA_PROCESS_TYPE_DECODE, block, outputs=True)
        return [self._logits(i) for i in range(n)]


@contextmanager
def llama_head(path: Path, target: Path, width: int) -> Iterator[LlamaHead]:
    """Open a head beside a target, whose embeddings and output matrix it may take."""
    llama_cpp.llama_backend_init()
    models, contexts = list[Any](), list[Any]()
    try:
        for file in (target, path):
            models.append(
                low.llama_model_load_from_file(str(file).encode(), low.llama_model_default_params())
            )
            assert models[-1], file
            params = low.llama_context_default_params()
            params.n_ctx, params.n_threads, params.n_threads_batch = N_CTX, 1, 1
            params.flash_attn_type, params.type_k, params.type_v = 0, 0, 0  # off, and F32
            if contexts:
                params.ctx_other = contexts[0]
            contexts.append(low.llama_init_from_model(models[-1], params))
            assert contexts[-1], file
        n_vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(models[1]))
        yield LlamaHead(contexts[1], width, n_vocab)
    finally:
        for context in reversed(contexts):
            low.llama_free(context)
        for model in reversed(models):
            low.llama_model_free(model)
