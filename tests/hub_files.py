"""Folders as Hugging Face's libraries save models, with a tokenizer and without weights worth anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gguf_files import byte_tokens

CONFIG = {
    **{"model_type": "qwen2", "torch_dtype": "bfloat16", "vocab_size": 262, "max_position_embeddings": 32768},
    **{"num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2},
}


def write_json(path: Path, said: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said), encoding="utf-8")
    return path


def added(token: int, content: str, *, special: bool = True) -> dict[str, Any]:
    return {"id": token, "content": content, "special": special, "normalized": False}


def byte_level(more: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """tokenizer.json of a byte-level BPE: 256 bytes, <|end|> as 256, and one merge."""
    vocab = {text: token for token, text in enumerate(byte_tokens())} | {"ĠĠ": 257}
    return {
        "added_tokens": [added(256, "<|end|>"), *more],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]},
        "post_processor": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["Ġ", "Ġ"]], "byte_fallback": False},
    }


def write_folder(folder: Path, config: Mapping[str, Any] | None = None, tokenizer: Any = None) -> Path:
    write_json(folder / "config.json", {**CONFIG, **(config or {})})
    write_json(folder / "tokenizer.json", byte_level() if tokenizer is None else tokenizer)
    return folder
