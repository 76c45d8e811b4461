"""Prompts and random answers to train on, and other files of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from paceline.prepare.training.answers import Answer


def write_lines(path: Path, *records: Any) -> Path:
    """Write a line for each record, a text as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records))
    return path


def number_prompts(path: Path, n: int) -> Path:
    """Write prompts of digits, for the toy model."""
    return write_lines(path, *({"prompt": f"{7919 * k % 99991}"} for k in range(n)))


def answer(n_prompt: int, n_tokens: int, *, n_vocab: int = 8, seed: int = 0) -> Answer:
    ids = np.random.default_rng([n_prompt, n_tokens, seed]).integers(2, n_vocab, n_prompt + n_tokens)
    prompt, tokens = np.split(ids.astype(np.int32), [n_prompt])
    return Answer(f"{n_prompt}-{n_tokens}-{seed}", prompt, tokens, "length", False)
