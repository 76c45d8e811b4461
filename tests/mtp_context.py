"""llama.cpp's own run of an MTP block, apart from its trunk."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp_ext

from paceline.backends.llama_cpp.binding import llama_cpp


class MTPContext:
    """The second context of a file, in float32."""

    def __init__(self, path: Path) -> None:
        cpp = llama_cpp()
        cpp.llama_backend_init()
        params = cpp.llama_model_default_params()
        params.load_mtp = True
        self.model = cpp.llama_model_load_from_file(str(path).encode(), params)
        options = cpp.llama_context_default_params()
        options.n_ctx, options.flash_attn_type = 128, cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        options.type_k = options.type_v = cpp.GGML_TYPE_F32
        self.trunk = cpp.llama_init_from_model(self.model, options)
        options.ctx_type = cpp.LLAMA_CONTEXT_TYPE_MTP
        options.ctx_other = ctypes.cast(self.trunk, ctypes.c_void_p)
        self.context = cpp.llama_init_from_model(self.model, options)
        llama_cpp_ext.llama_set_embeddings_nextn(self.context, True, True)
        self.n_vocab = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(self.model))

    def close(self) -> None:
        llama_cpp().llama_free(self.context)
        llama_cpp().llama_free(self.trunk)
        llama_cpp().llama_model_free(self.model)

    def forget(self) -> None:
        llama_cpp().llama_memory_clear(llama_cpp().llama_get_memory(self.context), True)

    def decode(self, tokens: Sequence[int], start: int, hidden: np.ndarray[Any, Any]) -> tuple[Any, Any]:
        """Return the last token's logits, and its normed state if it is alone: of several rows of which one
        is an output, llama.cpp returns the first state."""
        cpp, n = llama_cpp(), len(tokens)
        batch = cpp.llama_batch_init(n, hidden.shape[1], 1)
        ids = (ctypes.c_int32 * n)(*tokens)
        batch.n_tokens, batch.token = n, ids
        ctypes.memmove(batch.embd, np.ascontiguousarray(hidden, np.float32).ctypes.data, hidden.size * 4)
        for i in range(n):
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = start + i, 1, 0
            batch.logits[i] = i == n - 1
        assert cpp.llama_decode(self.context, batch) == 0
        batch.token = None
        cpp.llama_batch_free(batch)
        logits = np.ctypeslib.as_array(cpp.llama_get_logits_ith(self.context, n - 1), (self.n_vocab,)).copy()
        state = llama_cpp_ext.llama_get_embeddings_nextn_ith(self.context, n - 1)
        return logits, np.ctypeslib.as_array(state, (hidden.shape[1],)).copy()
