"""Is drafted output the plain output? And where it is not, was it a near-tie?

A forward of several rows uses other kernels than one of a single row, and its logits differ in the last bits.
Greedy output may therefore flip where two tokens are almost equally likely, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.core.ports import Budget, Target, Want
from paceline.core.sampling import Sampling, adjust
from paceline.core.tree import ROOT, DraftTree

# Enough rows to see every shape of batch, and few enough to hold their logits in memory.
NOISE_ROWS = 128
GREEDY = Sampling()
# Noise as a share of a row's standard deviation: up to 0.15 was seen, at Q8_0 (docs/log.md).
PLAUSIBLE = 0.25


@dataclass(frozen=True)
class Difference:
    """index: of the first output token that differs. gap: between the logits of the two tokens there,
    computed one row at a time (infinite where one output has ended). noise: the most that computing several
    rows at once moved two logits of a row apart. spread: the standard deviation of the row's logits."""

    index: int
    gap: float
    noise: float
    spread: float = field(default=math.inf, compare=False)

    @property
    def near_tie(self) -> bool:
        """A near-tie, and one that rounding explains: an engine that mixes up its cells moves logits by as
        much as they differ among themselves, and that is no noise."""
        return self.gap <= self.noise <= PLAUSIBLE * self.spread


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def explain(
    target: Target,
    prompt: Sequence[int],
    plain: Sequence[int],
    drafted: Sequence[int],
    budget: Budget,
    sampling: Sampling = GREEDY,
) -> Difference | None:
    """The first difference between two greedy outputs, the second with drafts of `budget`; None without one.

    The noise is measured on the plain text around it, in a session of its own and with made-up drafts of the
    budget's shape: a wrong cell of the drafted run is not in it, and cannot excuse itself. The rows after the
    difference count too, and those of the prompt: noise comes and goes with the order of the cache's cells.
    """
    index = first_difference(plain, drafted)
    if index is None:
        return None
    text = [*prompt, *plain]
    place = len(prompt) + index
    text = text[: max(place + NOISE_ROWS // 2, NOISE_ROWS)]
    start = max(1, len(text) - NOISE_ROWS)
    one_by_one = teacher_forced(target, text, start, Budget(0, 0))
    together = teacher_forced(target, text, start, budget)
    gap = math.inf
    row = one_by_one[min(place - start, len(one_by_one) - 1)]
    if index < min(len(plain), len(drafted)):
        adjusted = adjust(row, sampling, text[:place])
        gap = abs(float(adjusted[plain[index]] - adjusted[drafted[index]]))
    return Difference(index, gap, batch_noise(one_by_one, together), float(row.std()))


def batch_noise(a: np.ndarray, b: np.ndarray) -> float:
    """The most that any two logits of one row [n_vocab] moved apart between `a` and `b` [rows, n_vocab]."""
    moved = b - a
    return float((moved.max(axis=1) - moved.min(axis=1)).max())


def teacher_forced(target: Target, tokens: Sequence[int], start: int, budget: Budget) -> np.ndarray:
    """Logits [len(tokens) - start, n_vocab] that predict each token from `start` on, decoded as the loop
    decodes drafts of `budget` whose last branch is always right."""
    session = target.open()
    out = []
    try:
        session.prefill(tokens[:start])
        at = start
        while at < len(tokens):
            # As Request.cap does: no more than a pass takes, and than the context has room for.
            width = min(budget.width, target.caps.branch)
            room = min(target.caps.rows - 1, target.caps.n_ctx - len(session.tokens))
            depth = min(budget.depth, room // width)
            right = tokens[at : min(at + depth, len(tokens) - 1)]
            tree, path = among_decoys(right, width, target.vocab.size)
            forward = target.forward([(session, tree)], Want())[0]
            out += [forward.logits(row).astype(np.float64) for row in (0, *(node + 1 for node in path))]
            at += len(right) + 1
            session.keep(path, tokens[at - 1])
    finally:
        session.close()
    return np.stack(out)


def among_decoys(right: Sequence[int], width: int, n_vocab: int) -> tuple[DraftTree, list[int]]:
    """`width` chains of equal length below the root, level by level, the right one last; and its nodes."""
    n = len(right)
    tokens = [(token + other) % n_vocab for token in right for other in range(width - 1, -1, -1)]
    parents = [i - width if i >= width else ROOT for i in range(n * width)]
    tree = DraftTree(tuple(tokens), tuple(parents), (1.0,) * len(tokens), ("decoy",) * len(tokens))
    return tree, list(range(width - 1, n * width, width))
