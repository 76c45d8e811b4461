"""A draft model whose tokenizer is really another: the embedded draft with fewer merges and shuffled ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gguf_files import byte_tokens, copied
from paceline.models import zoo


def write_foreign(path: Path, *, merges: int = 2000, seed: int = 0) -> Path:
    """Keep the 256 byte tokens, the end token and what the first `merges` merges make, with their embeddings,
    under new ids. Everything else stays as it is."""
    import gguf

    reader = gguf.GGUFReader(zoo.draft_path())
    keys: dict[str, Any] = {key: field.contents() for key, field in reader.fields.items()}
    old = {token: i for i, token in enumerate(keys["tokenizer.ggml.tokens"])}
    kept_merges = keys["tokenizer.ggml.merges"][:merges]
    end = next(t for t in old if t == "<|endoftext|>")
    tokens = [*byte_tokens(), end, *dict.fromkeys(merge.replace(" ", "") for merge in kept_merges)]
    tokens = [tokens[i] for i in np.random.default_rng(seed).permutation(len(tokens))]
    changed = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [
            gguf.TokenType.CONTROL if token == end else gguf.TokenType.NORMAL for token in tokens
        ],
        "tokenizer.ggml.merges": kept_merges,
        "llama.vocab_size": len(tokens),
    } | {f"tokenizer.ggml.{name}_token_id": tokens.index(end) for name in ("bos", "eos", "padding")}

    def change(tensor: Any) -> tuple[Any, Any]:
        chosen = [old[token] for token in tokens] if tensor.name == "token_embd.weight" else slice(None)
        return np.ascontiguousarray(tensor.data[chosen]), tensor.tensor_type

    return copied(zoo.draft_path(), path, changed, change)
