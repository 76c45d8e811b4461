"""Answers with random tokens, to train on."""

from __future__ import annotations

import numpy as np

from paceline.prepare.training.answer_folder import Answer


def answer(n_prompt: int, n_tokens: int, *, n_vocab: int = 8, seed: int = 0) -> Answer:
    ids = np.random.default_rng([n_prompt, n_tokens, seed]).integers(2, n_vocab, n_prompt + n_tokens)
    prompt, tokens = np.split(ids.astype(np.int32), [n_prompt])
    return Answer(f"{n_prompt}-{n_tokens}-{seed}", prompt, tokens, "length", False)
