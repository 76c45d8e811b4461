"""Variants of the embedded target: Mamba-2 in chunks, and files whose rows are those of the network."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from llama_cpp import llama_cpp_ext

from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.models.zoo import target_path
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from tools.embedded.restore import tokenizer_of
from tools.embedded.variants import VARIANTS, Variant, begin, write_variant

class MTPContext:
    """llama.cpp's second context of a file, for its head alone."""

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


TOKENS = [(7919 * at + 11) % 8000 + 1 for at in range(90)]  # more than a chunk


def written(variant: str, folder: Path) -> tuple[Variant, Path]:
    torch.manual_seed(0)
    model = begin(variant)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ssm_out" in name:  # it begins with zeros
                weight.normal_(0.0, 0.03)
            elif "attn_q" in name and variant == "mtp":  # as do its gates
                weight += torch.randn_like(weight) * 0.03
    tokenizer, path = folder / "tokenizer.json", folder / "model.gguf"
    tokenizer.write_text(tokenizer_of(target_path()).to_str(), "utf-8")
    write_variant(variant, model, tokenizer, path, "F32")
    return model, path


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_computes_the_networks_rows(variant: str, tmp_path: Path) -> None:
    model, path = written(variant, tmp_path)
    expected = model(torch.tensor([TOKENS]))[0].detach().numpy()
    settings: dict[str, Any] = {"cache_type": "f32", "flash_attention": False, "kernels": False}
    with closing(LlamaTarget(path, n_ctx=128, **settings)) as target, closing(target.open()) as session:
        session.extend(TOKENS[:80])
        out = target.forward([(session, chain(TOKENS[80:], "test"))], RequiredOutputs())[0]
        rows = np.stack([out.logits(row) for row in range(11)])
        assert target.caps.rollback == ("free" if variant == "moe" else "restore")
    assert np.abs(rows - expected[79:]).max() < 2e-3 * np.abs(expected).max()


def test_llama_cpp_computes_the_heads_steps(tmp_path: Path) -> None:
    model, path = written("mtp", tmp_path)
    starts, depth = torch.tensor([0, 40, 85]), 4
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([TOKENS]))
        expected = [g[0].numpy() for g in model.guesses(torch.tensor([TOKENS]), hidden, starts, depth)]
    with closing(MTPContext(path)) as head:
        for row, start in enumerate(starts.tolist()):
            head.forget()
            before = np.concatenate([np.zeros((1, hidden.shape[-1]), np.float32), hidden[0, :start].numpy()])
            if start:
                head.decode(TOKENS[:start], 0, before[:-1])
            state = before[-1]
            for step in range(depth):
                logits, state = head.decode([TOKENS[start + step]], start + step, state[None])
                assert np.abs(logits - expected[step][row]).max() < 2e-3 * np.abs(expected[step]).max()
