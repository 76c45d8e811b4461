"""A GGUF file that llama.cpp does not load is refused in our words: what is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_files import rewritten, write_llama
from paceline.backends.llama_cpp import LlamaTarget
from paceline.models.headers.gguf_writer import TensorToWrite, metadata_field
from paceline.speculative.errors import ModelError

Change = Callable[[dict[str, bytes], dict[str, TensorToWrite]], object]


def tensor(name: str, *dims: int) -> Change:
    data = np.ones(dims, np.float32)
    part = TensorToWrite(name, dims, 0, data.nbytes, lambda: iter([data]))
    return lambda fields, parts: parts.update({name: part})


def entry(key: str, value: str | int) -> Change:
    return lambda fields, parts: fields.update({key: metadata_field(key, value)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (tensor("kelpie.weight", 8), "22 tensors, of which llama.cpp uses 21"),
        (entry("llama.block_count", 1), "21 tensors, of which llama.cpp uses 12"),
        (lambda fields, parts: parts.pop("blk.1.ffn_up.weight"), "no blk.1.ffn_up.weight"),
        (lambda fields, parts: parts.clear(), "no usable weights"),
        (tensor("blk.1.ffn_up.weight", 32, 128), r"ffn_up.weight is \[32, 128"),
        (entry("general.architecture", "kelpie"), "architecture 'kelpie'"),
        (lambda fields, parts: fields.pop("llama.block_count"), "no usable llama.block_count"),
        (entry("llama.block_count", "many"), "no usable llama.block_count"),
        (lambda fields, parts: fields.pop("tokenizer.ggml.tokens"), "no usable tokenizer vocab"),
        (entry("tokenizer.ggml.pre", "kelpie"), "pre-tokenizer type 'kelpie'"),
        (entry("llama.attention.head_count", 5), "contradicts itself"),
    ],
)
def test_a_refusal_is_in_our_words(change: Change, words: str, tmp_path: Path) -> None:
    path = rewritten(write_llama(tmp_path / "whole.gguf"), tmp_path / "changed.gguf", change)
    with pytest.raises(ModelError, match=words) as caught:
        LlamaTarget(path, n_ctx=64)
    assert "llama_model_load" not in str(caught.value)
