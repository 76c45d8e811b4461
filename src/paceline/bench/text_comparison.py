"""Is drafted output the plain output? And where it is not, was it a near-tie?

A forward of several rows uses other kernels than one of a single row, and its logits differ in the last bits.
Greedy output may therefore flip where two tokens are almost equally likely, and only there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline.backends.logit_drift import batch_noise, teacher_forced
from paceline.speculative.interfaces import Budget, Target
from paceline.speculative.sampling import Sampling, adjust

GREEDY = Sampling()
# Noise as a share of a row's standard deviation: up to 0.64 was seen, at Q4_1 (docs/log/certify.md). Rows
# that have nothing to do with each other lie several deviations apart.
PLAUSIBLE = 1.0


@dataclass(frozen=True)
class Difference:
    """index: of the first output token that differs. gap: by how much the plain token's logit leads the
    drafted one's, computed one row at a time (infinite where one output has ended). noise: the most that
    computing several rows at once moved two logits of a row apart. spread: the standard deviation of the
    row's logits. tokens: plain's and drafted's, None for an output that has ended. drafted_gap: as `gap`,
    with the text computed in passes as large as drafted ones."""

    index: int
    gap: float
    noise: float
    spread: float = field(default=math.inf, compare=False)
    tokens: tuple[int | None, int | None] = field(default=(None, None), compare=False)
    drafted_gap: float = field(default=0.0, compare=False)

    @property
    def near_tie(self) -> bool:
        """A near-tie in both ways of computing it, and one that rounding explains: an engine that mixes up
        its cells moves logits by as much as they differ among themselves, and that is no noise."""
        gap = max(abs(self.gap), abs(self.drafted_gap))
        return gap <= self.noise <= PLAUSIBLE * self.spread


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
    noise: float | None = None,
) -> Difference | None:
    """The first difference of two greedy outputs, the second with drafts of `budget`; None without one.
    noise: of that text, where it has been measured before."""
    index = first_difference(plain, drafted)
    if index is None:
        return None
    text = [*prompt, *plain, *drafted[len(plain) :]]
    tokens = (plain[index] if index < len(plain) else None, drafted[index] if index < len(drafted) else None)
    start, place = len(prompt), len(prompt) + index
    row, together = (
        teacher_forced(target, text[: place + 1], start, n)[-1] for n in (1, rows_of(target, budget))
    )
    gaps = [math.inf, math.inf]
    a, b = tokens
    if a is not None and b is not None:
        gaps = [float(r[a] - r[b]) for r in (adjust(r, sampling, text[:place]) for r in (row, together))]
    if noise is None:
        noise = 0.0 if target.caps.exact else batch_noise(target, text, rows_of(target, budget))
    return Difference(index, gaps[0], noise, float(row.std()), tokens, gaps[1])


def first_stray(
    target: Target,
    prompt: Sequence[int],
    said: Sequence[int],
    start: int,
    noise: float,
    sampling: Sampling = GREEDY,
) -> int | None:
    """The first token of a greedy output, from the one at `start` on, that plain decoding of the very text
    before it would not say: another one leads it by more than `noise`. None where there is none."""
    text = [*prompt, *said]
    place = len(prompt) + start
    if place >= len(text):
        return None
    for i, row in enumerate(teacher_forced(target, text, place, 1)):
        logits = adjust(row, sampling, text[: place + i])
        if logits.max() - logits[text[place + i]] > noise:
            return start + i
    return None


def rows_of(target: Target, budget: Budget) -> int:
    """The rows of a full pass."""
    return min(1 + budget.nodes, target.caps.rows)
