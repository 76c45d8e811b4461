"""Logit drift: passes over several rows run other kernels than passes over one, and round otherwise."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.sampling import Logits
from paceline.speculative.tree import chain

N_TOKENS = 256  # tokens of the text that drift is measured on
N_POSITIONS = 8  # drift varies with the order of the cache's cells
USUAL_DRAFT_ROWS = 8  # kernels are chosen by the number of rows, and the largest pass may not drift most

Rows = NDArray[np.float64]


def batch_logit_drift(target: Target, text: Sequence[int], n: int) -> float:
    """Return the largest change of a difference of two logits of a row, in passes of a few and of `n` rows.
    Every pass starts from an empty cache."""
    text = text[-N_TOKENS:]
    one_by_one = teacher_forced_logits(target, text, 1, 1)
    last = len(text) - 1
    drift = 0.0
    for rows in sorted({min(USUAL_DRAFT_ROWS, n), n}):
        for at in sorted({max(1, last - rows - i * last // N_POSITIONS) for i in range(N_POSITIONS)}):
            together = logits_from_empty_cache(target, text[:at], text[at : min(at + rows - 1, last)], rows)
            drift = max(drift, max_logit_difference(one_by_one[at - 1 : at - 1 + len(together)], together))
    return drift


def max_logit_difference(a: Rows, b: Rows) -> float:
    """Return the largest change of a difference of two logits of a row, of `a` and `b` [rows, n_vocab]."""
    change = b - a
    return float((change.max(axis=1) - change.min(axis=1)).max())


def logits_from_empty_cache(
    target: Target, tokens: Sequence[int], right: Sequence[int] = (), piece: int | None = None
) -> Rows:
    """Return the logits [1 + len(right), n_vocab] of one pass over the last of `tokens` and `right`.
    piece: chunk size of the prefill before that pass."""
    target.forget()
    with closing(target.open()) as session:
        session.extend(tokens)
        while piece is not None and session.pending_tokens:
            target.forward([(session, min(piece, session.pending_tokens))], RequiredOutputs())
        out = target.forward([(session, chain(right, "right"))], RequiredOutputs())[0]
        return np.stack([out.logits(row).astype(np.float64) for row in range(len(right) + 1)])


def teacher_forced_logits(target: Target, tokens: Sequence[int], start: int, n: int) -> Rows:
    """Return the logits [len(tokens) - start, n_vocab] that predict each token from `start` on."""
    passes = teacher_forced_passes(target, tokens, start, n)
    return np.stack([row.astype(np.float64) for rows in passes for row in rows])


def teacher_forced_passes(
    target: Target, tokens: Sequence[int], start: int, n: int
) -> Generator[list[Logits], None, None]:
    """Yield the logits that predict each token from `start` on, of one pass after the other; they are valid
    until the target's next. The passes have up to `n` rows, and their drafts are always right."""
    at = start
    with closing(target.open()) as session:
        session.extend(tokens[:start])
        while at < len(tokens):
            room = min(n - 1, target.caps.n_ctx - len(session.tokens))
            tree = chain(tokens[at : min(at + room, len(tokens) - 1)], "right")
            forward: Any = target.forward([(session, tree)], RequiredOutputs())[0]
            rows = [forward.logits(row) for row in range(len(tree) + 1)]
            at += len(tree) + 1
            session.commit(range(len(tree)), tokens[at - 1])
            yield rows
