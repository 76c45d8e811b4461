"""Is drafted output the plain output? And where it is not, was it a near-tie?

A forward of several rows uses other kernels than one of a single row, and its logits differ in the last bits.
Greedy output may therefore flip where two tokens are almost equally likely, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.core.errors import LosslessError
from paceline.core.ports import Target, Want
from paceline.core.tree import EMPTY, chain


@dataclass(frozen=True)
class Difference:
    """index: of the first output token that differs. gap: between the two likeliest logits there, computed
    one row at a time. noise: the most that computing several at once moved two logits of a row apart."""

    index: int
    gap: float
    noise: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= self.noise


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def explain(
    target: Target, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int], rows: int
) -> Difference | None:
    """The first difference between two greedy outputs; None where there is none.

    rows: how many the drafted run computed at once (longest draft + 1).
    """
    index = first_difference(plain, drafted)
    if index is None:
        return None
    text = [*prompt, *plain[: index + 1]]
    one_by_one = teacher_forced(target, text, len(prompt), 1)
    together = teacher_forced(target, text, len(prompt), rows)
    best = np.partition(one_by_one[-1], -2)[-2:]
    return Difference(index, float(best[1] - best[0]), batch_noise(one_by_one, together))


def batch_noise(a: np.ndarray, b: np.ndarray) -> float:
    """The most that any two logits of one row [n_vocab] moved apart between `a` and `b` [rows, n_vocab]."""
    moved = b - a
    return float((moved.max(axis=1) - moved.min(axis=1)).max())


def teacher_forced(target: Target, tokens: Sequence[int], start: int, rows: int) -> np.ndarray:
    """Logits [len(tokens) - start, n_vocab] that predict each token from `start` on, decoded `rows` at a time
    as the loop decodes a fully accepted chain."""
    session = target.open()
    out = []
    try:
        session.prefill(tokens[:start])
        at = start
        while at < len(tokens):
            drafted = tokens[at : min(at + rows - 1, len(tokens) - 1)]
            forward = target.forward([(session, chain(drafted, "text") if drafted else EMPTY)], Want())[0]
            out += [forward.logits(row).astype(np.float64) for row in range(len(drafted) + 1)]
            at += len(drafted) + 1
            session.keep(range(len(drafted)), tokens[at - 1])
    finally:
        session.close()
    return np.stack(out)


def require_lossless(difference: Difference | None) -> None:
    """Raises LosslessError where greedy outputs differ and it was no near-tie."""
    if difference is not None and not difference.near_tie:
        raise LosslessError(
            f"drafted output differs from plain output at token {difference.index}: the top two logits "
            f"are {difference.gap:.3g} apart, batch noise is {difference.noise:.3g}. This is a bug: report it"
        )
