"""Handmade header facts: a target with byte-level BPE, and drafts that differ from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.models.compatibility.check import Compatibility, CompatibilityReason, compare
from paceline.models.headers.facts import ModelFacts, TokenizerFacts
from paceline.models.headers.vocabulary import BYTE_LEVEL

BYTES = [char.encode() for char in BYTE_LEVEL]
WORDS = [b"w%d" % i for i in range(100)]
TEXTS = (*BYTES, *WORDS, b"<|end|>")
END = len(TEXTS) - 1
SPECIAL = {"bos": END, "eos": END}
TOKENIZER = TokenizerFacts(
    "BPE", "qwen2", TEXTS, types=(1,) * END + (3,), special=SPECIAL, ends=frozenset({END}), add_bos=False
)


def model(name: str = "target", tokenizer: TokenizerFacts | None = TOKENIZER, **said: Any) -> ModelFacts:
    known: dict[str, Any] = {"files": (Path(f"{name}.gguf"),), "format": "gguf", "arch": "qwen2"}
    known |= {"parameters": 7_000_000_000 if name == "target" else 500_000_000, "n_ctx": 32_768}
    return ModelFacts(**(known | {"name": name} | said), tokenizer=tokenizer)


def check(
    tokenizer: TokenizerFacts | None = TOKENIZER, target: dict[str, Any] | None = None, **draft: Any
) -> Compatibility:
    return compare(model(**(target or {})), model("draft", tokenizer, **draft))


def of(found: Compatibility, field: str) -> CompatibilityReason:
    return next(reason for reason in found.reasons if reason.field == field)


def weights(found: Compatibility, weight: str) -> list[str]:
    return [reason.field for reason in found.reasons if reason.weight == weight]


def respelled(tokenizer: TokenizerFacts, changes: dict[int, bytes]) -> TokenizerFacts:
    return replace(tokenizer, texts=[changes.get(i, text) for i, text in enumerate(tokenizer.texts)])


def padded(tokenizer: TokenizerFacts, n: int) -> TokenizerFacts:
    size = len(tokenizer.texts)
    more = [b"[PAD%d]" % i for i in range(size, size + n)]
    return replace(tokenizer, texts=[*tokenizer.texts, *more], types=[*tokenizer.types, *(5 for _ in more)])
