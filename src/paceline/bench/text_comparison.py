"""Comparison of drafted with plain output, and the detection of near-ties.

A forward pass of several rows uses other kernels than one of a single row, so that logits differ in the last
bits. Greedy output may therefore differ where two tokens are almost equally likely, and only there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from paceline.api import LLM
from paceline.backends.logit_drift import batch_logit_drift, teacher_forced_logits
from paceline.engine import OnPrefill
from paceline.request_handle import Generation
from paceline.speculative.errors import NotLosslessError
from paceline.speculative.interfaces import Budget, Target
from paceline.speculative.sampling import Sampling, adjust_logits

GREEDY = Sampling()
# Noise as a share of a row's standard deviation: up to 0.64 at Q4_1 (docs/log/certify.md). Unrelated rows
# differ by several deviations.
PLAUSIBLE = 1.0


@dataclass(frozen=True)
class Difference:
    """The first difference of two greedy outputs.
    gap: lead of the plain token's logit over the drafted one's, computed row by row; infinite if one output
    has ended. drafted_gap: the same, computed in passes of drafted size. noise: the largest effect of the
    batch size on the difference of two logits of a row. spread: standard deviation of the row. tokens: of
    the plain and the drafted output, None if it has ended."""

    index: int
    gap: float
    noise: float
    spread: float = field(default=math.inf, compare=False)
    tokens: tuple[int | None, int | None] = field(default=(None, None), compare=False)
    drafted_gap: float = field(default=0.0, compare=False)

    @property
    def near_tie(self) -> bool:
        """True if rounding explains the difference in both computations. A defect moves logits by about their
        spread, which noise does not."""
        gap = max(abs(self.gap), abs(self.drafted_gap))
        return gap <= self.noise <= PLAUSIBLE * self.spread


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y), None)


def explain(
    target: Target, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int], budget: Budget,
    sampling: Sampling = GREEDY,
) -> Difference | None:  # fmt: skip
    """Return the first difference of two greedy outputs, if any."""
    index = first_difference(plain, drafted)
    if index is None:
        return None
    text = [*prompt, *plain, *drafted[len(plain) :]]
    a, b = (out[index] if index < len(out) else None for out in (plain, drafted))
    place, width = len(prompt) + index, rows_of(target, budget)
    rows = [teacher_forced_logits(target, text[: place + 1], len(prompt), n)[-1] for n in (1, width)]
    gaps = [math.inf, math.inf]
    if a is not None and b is not None:
        gaps = [float(r[a] - r[b]) for r in (adjust_logits(row, sampling, text[:place]) for row in rows)]
    noise = 0.0 if target.caps.exact else batch_logit_drift(target, text, width)
    return Difference(index, gaps[0], noise, float(rows[0].std()), (a, b), gaps[1])


def first_non_greedy_token(
    target: Target, prompt: Sequence[int], tokens: Sequence[int], start: int, noise: float, sampling: Sampling
) -> int | None:
    """Return the index of the first token, from `start` on, that another leads by more than `noise`."""
    text, place = [*prompt, *tokens], len(prompt) + start
    if place >= len(text):
        return None
    for i, row in enumerate(teacher_forced_logits(target, text, place, 1)):
        logits = adjust_logits(row, sampling, text[: place + i])
        if logits.max() - logits[text[place + i]] > noise:
            return start + i
    return None


def rows_of(target: Target, budget: Budget) -> int:
    """Return the number of rows of a full verification pass."""
    return min(1 + budget.nodes, target.caps.max_batch_tokens)


@dataclass(frozen=True)
class OutputComparison:
    """The comparison of plain and drafted output. at: the first different token."""

    identical: bool
    verdict: str
    at: int | None = None
    difference: Difference | None = None

    def require_lossless(self) -> None:
        """Raise NotLosslessError if greedy outputs differ without a near-tie."""
        if self.difference is not None and not self.difference.near_tie:
            apart = f"{self.difference.gap:.3g} apart, batch noise is {self.difference.noise:.3g}"
            what = f"drafted output differs from plain output from token {self.at} on"
            bug = "This is a bug in Paceline: please report it"
            raise NotLosslessError(f"{what}: the two tokens' logits are {apart}. {bug}")


def warm_up(llm: LLM, prompt: Sequence[int], on_prefill: OnPrefill | None = None) -> Generation:
    """Prepare comparable runs: load all weights and prefill the prompt in the target's cache, not in the
    draft model's. Return the prefill."""
    prompt = tuple(prompt)  # an empty list would mean a batch without prompts
    llm.generate(prompt[:1], max_tokens=2, remember=False)
    return llm.generate(prompt, max_tokens=1, plain=True, on_prefill=on_prefill)


def judge(
    llm: LLM, prompt: Sequence[int], plain: Sequence[int], drafted: Sequence[int], sampling: Sampling
) -> OutputComparison:
    """Compare the tokens of both outputs."""
    at = first_difference(plain, drafted)
    if at is None:
        return OutputComparison(True, "yes")
    if not sampling.greedy:
        message = f"no: not from token {at} on, where rounding can have moved a draw; --temp 0 can tell"
        if llm.drafting.draft_temp > 0:
            message = "no: sampled drafts draw another text from the same distribution"
        return OutputComparison(False, message, at)
    sampling = llm.sampling(**vars(sampling))
    difference = explain(llm.target, prompt, plain, drafted, llm.drafting.budget, sampling)
    assert difference is not None  # as they differ
    message = f"NO: not from token {at} on"
    if difference.near_tie:
        apart = f"{difference.gap:.2g} apart, batch noise is {difference.noise:.2g}"
        message = f"up to token {at}, a near-tie: the two tokens' logits are {apart}"
    return OutputComparison(False, message, at, difference)
