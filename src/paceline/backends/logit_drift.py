"""What the shape of a pass does to its numbers: several rows run other kernels than one does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain

N_TOKENS = 256  # tokens of the text that noise is measured on
N_POSITIONS = 8  # noise comes and goes with the order of the cache's cells
USUAL_DRAFT_ROWS = (
    8  # rows of a usual draft: kernels are chosen by the number of rows, and the most are not the worst
)

Rows = NDArray[np.float64]


def batch_logit_drift(target: Target, text: Sequence[int], n: int, one_by_one: Rows | None = None) -> float:
    """Return the most that two logits of one row move apart in passes of a few rows, and of `n`.

    Nothing is accepted, rejected or branched: each place is computed from an empty cache and compared with
    decoding a token at a time (`one_by_one`)."""
    text = text[-N_TOKENS:]
    if one_by_one is None:
        one_by_one = sequential_logits(target, text)
    last = len(text) - 1
    noise = 0.0
    for rows in sorted({min(USUAL_DRAFT_ROWS, n), n}):
        for at in sorted({max(1, last - rows - i * last // N_POSITIONS) for i in range(N_POSITIONS)}):
            together = logits_from_empty_cache(target, text[:at], text[at : min(at + rows - 1, last)], rows)
            noise = max(noise, max_logit_difference(one_by_one[at - 1 : at - 1 + len(together)], together))
    return noise


def sequential_logits(target: Target, text: Sequence[int]) -> Rows:
    """Decode the end of the text a token at a time [tokens - 1, n_vocab]."""
    return teacher_forced_logits(target, text[-N_TOKENS:], 1, 1)


def max_logit_difference(a: Rows, b: Rows) -> float:
    """Return the most that two logits of one row moved apart between `a` and `b` [rows, n_vocab]."""
    moved = b - a
    return float((moved.max(axis=1) - moved.min(axis=1)).max())


def logits_from_empty_cache(
    target: Target, tokens: Sequence[int], right: Sequence[int] = (), piece: int | None = None
) -> Rows:
    """Return the rows [1 + len(right), n_vocab] of one pass over the last of `tokens` and `right`, in a fresh
    session. piece: prefill the text before in passes of so many tokens."""
    target.forget()
    session = target.open()
    try:
        session.extend(tokens)
        while piece is not None and session.pending_tokens:
            target.forward([(session, min(piece, session.pending_tokens))], RequiredOutputs())
        out = target.forward([(session, chain(right, "right"))], RequiredOutputs())[0]
        return np.stack([out.logits(row).astype(np.float64) for row in range(len(right) + 1)])
    finally:
        session.close()


def teacher_forced_logits(target: Target, tokens: Sequence[int], start: int, n: int) -> Rows:
    """Return the logits [len(tokens) - start, n_vocab] that predict each token from `start` on, in passes of
    up to `n` rows whose drafts are always right."""
    session = target.open()
    out = []
    try:
        session.extend(tokens[:start])
        at = start
        while at < len(tokens):
            room = min(n - 1, target.caps.n_ctx - len(session.tokens))
            tree = chain(tokens[at : min(at + room, len(tokens) - 1)], "right")
            forward: Any = target.forward([(session, tree)], RequiredOutputs())[0]
            out += [forward.logits(row).astype(np.float64) for row in range(len(tree) + 1)]
            at += len(tree) + 1
            session.commit(range(len(tree)), tokens[at - 1])
    finally:
        session.close()
    return np.stack(out)
