"""From logits to the distribution plain sampling would use.

The chain has llama.cpp's order: logit bias, penalties over the last `repeat_last_n` tokens, top-k, typical-p,
top-p, min-p, XTC, temperature. The nucleus is therefore chosen before the temperature is applied. A grammar's
mask comes first, so that every filter chooses among what is allowed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import LogitsError, UsageError
from paceline.speculative.validation import require, validate_fields

Logits = NDArray[np.float32] | NDArray[np.float64]  # [n_vocab]
Probabilities = NDArray[np.float64]  # [n_vocab], or one a kept token
Mask = NDArray[np.bool_]  # [n_vocab]

TIE_MARGIN_LOGITS = 8.0  # logits
MAX_LOGIT = (
    1e15  # of a bias, a penalty, a temperature: together far from what a 32-bit logit cannot hold (3e38)
)


@dataclass(frozen=True)
class Sampling:
    """Settings of one request. temperature 0 is greedy; top_k 0, typical_p 1, top_p 1, min_p 0 and
    xtc_probability 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_fields(self)
        _within("temperature", self.temperature, 0.0, MAX_LOGIT)
        _within("top-k", self.top_k, 0)
        for name, value in (("typical-p", self.typical_p), ("top-p", self.top_p), ("min-p", self.min_p)):
            _within(name, value, 0.0, 1.0)
        _within("XTC probability", self.xtc_probability, 0.0, 1.0)
        _within("XTC threshold", self.xtc_threshold, 0.0, 1.0)
        for name, on in (("typical-p", self.typical_p < 1.0), ("XTC", self.xtc_probability > 0.0)):
            if on and self.greedy:
                raise UsageError(f"{name} may leave the likeliest token out: it needs a temperature above 0")
        if not 1.0 / MAX_LOGIT <= self.repeat_penalty <= MAX_LOGIT:
            wanted = f"above 0 (1 is off), between {1.0 / MAX_LOGIT:g} and {MAX_LOGIT:g}"
            raise require("repeat penalty", self.repeat_penalty, wanted)
        _within("presence penalty", self.presence_penalty, -MAX_LOGIT, MAX_LOGIT)
        _within("frequency penalty", self.frequency_penalty, -MAX_LOGIT, MAX_LOGIT)
        _within("repeat-last-n", self.repeat_last_n, 0)
        for token, bias in self.logit_bias.items():
            if token < 0 or not (abs(bias) <= MAX_LOGIT or bias == -math.inf):
                raise UsageError(
                    f"logit bias {token}={bias}: needs a token id, and a number between {-MAX_LOGIT:g} and "
                    f"{MAX_LOGIT:g} (or -inf)"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n > 0 and penalties != (1.0, 0.0, 0.0)

    @property
    def filtered(self) -> bool:
        """Whether anything but the temperature makes a row's distribution of its logits."""
        cuts = min(self.typical_p, self.top_p) < 1.0
        return cuts or self.top_k > 0 or self.min_p > 0.0 or self.xtc_probability > 0.0

    @property
    def edits_logits(self) -> bool:
        """Whether the likeliest token can differ from the argmax of the model's own logits."""
        return bool(self.logit_bias) or self.penalised


def _within(name: str, value: float, low: float, high: float | None = None) -> None:
    if high is None and value < low:
        raise require(name, value, f"a number of at least {low:g}")
    if high is not None and not low <= value <= high:
        raise require(name, value, f"between {low:g} and {high:g}")


def sampling_error(largest: float) -> str:
    """Say what is wrong with a row by its largest logit, which numpy makes NaN where any is; "" for nothing.
    Minus infinity is a token that cannot follow: no fault, as long as another one can."""
    if math.isfinite(largest):
        return ""
    if math.isnan(largest):
        return "NaN"
    return "infinity" if largest > 0.0 else "minus infinity for every token"


def require_numbers(largest: float) -> None:
    """Raise LogitsError for a row with a fault."""
    if not math.isfinite(largest):
        raise LogitsError(f"its logits are not numbers ({sampling_error(largest)})")


def adjust_logits(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> Logits:
    """Logit bias, penalties and mask, on a copy if there are any. `history` ends with the row's own token.
    Raises LogitsError, and UsageError where bias and mask leave no token."""
    edited = sampling.edits_logits or mask is not None
    if not edited or mask is not None:  # which could hide what is wrong; biases and penalties cannot
        require_numbers(logits.max())
    if not edited:
        return logits
    out = logits.copy()
    for token, bias in sampling.logit_bias.items():
        if token < len(out):
            out[token] += bias
    if sampling.penalised:
        for token, count in Counter(history[-sampling.repeat_last_n :]).items():
            # As in llama.cpp: dividing a negative logit would make its token likelier.
            value = out[token]
            value = value / sampling.repeat_penalty if value > 0 else value * sampling.repeat_penalty
            out[token] = value - count * sampling.frequency_penalty - sampling.presence_penalty
    if mask is not None:
        out[~mask] = -math.inf
    largest = out.max()
    if largest == -math.inf:
        require_numbers(logits.max())
        raise UsageError("no token can follow: a logit bias or the grammar forbids every one")
    require_numbers(largest)
    return out


def argmax(logits: Logits) -> int:
    """The likeliest token; the lowest id of equals, so that plain and drafted decoding break ties alike.
    Raises LogitsError: to numpy NaN is the largest, so that looking at one logit is enough."""
    best = int(logits.argmax())
    require_numbers(logits[best])
    return best


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """`p` of the tokens `ids`, and zero for all others: filters leave few tokens of a large vocabulary."""

    ids: NDArray[np.int64]
    p: Probabilities

    def of(self, token: int) -> float:
        return float(self.p[self.ids == token].sum())

    def draw(self, rng: Rng) -> int:
        return int(self.ids[rng.draw(self.p)])


class Rng(Protocol):
    """The questions verification asks of chance, so that a proof can enumerate every answer."""

    def accept(self, probability: float) -> bool: ...

    def draw(self, p: Probabilities) -> int: ...

    def draw_at(self, place: int, row: TokenDistribution) -> int:
        """The token that `row` draws at `place` of the text, prompt included: always the same."""


def target_distribution(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> TokenDistribution:
    """The distribution plain sampling draws from at this row, in float64. Raises as `adjust` does."""
    adjusted = adjust_logits(logits, sampling, history, mask)
    if sampling.greedy:
        return TokenDistribution(np.array([argmax(adjusted)]), np.ones(1))
    # Each filter works on the survivors of the one before; the lowest ids of equals survive, as in argmax.
    selected = np.arange(len(adjusted))
    if 0 < sampling.top_k < len(adjusted):
        selected = filter_top_k(adjusted, sampling.top_k)
    values = adjusted[selected].astype(np.float64)
    if sampling.typical_p < 1.0:
        inside = filter_typical_p(softmax(values), sampling.typical_p)
        selected, values = selected[inside], values[inside]
    if sampling.top_p < 1.0:
        inside = filter_top_p(softmax(values), sampling.top_p)
        selected, values = selected[inside], values[inside]
    if sampling.min_p > 0.0:
        enough = values >= values.max() + math.log(sampling.min_p)
        selected, values = selected[enough], values[enough]
    p = apply_temperature(values, sampling.temperature)
    if sampling.xtc_probability > 0.0:
        # A filter that is on by chance: plain sampling draws from the mixture of both outcomes.
        left = filter_xtc(softmax(values), sampling.xtc_threshold)
        p *= 1.0 - sampling.xtc_probability
        p[left] += sampling.xtc_probability * apply_temperature(values[left], sampling.temperature)
    return TokenDistribution(selected, p)


def probabilities(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> Probabilities:
    """`target_distribution` as one array [n_vocab]."""
    row = target_distribution(logits, sampling, history, mask)
    p = np.zeros(len(logits))
    p[row.ids] = row.p
    return p


def apply_temperature(values: NDArray[np.float64], temperature: float) -> Probabilities:
    # The maximum goes first: a tiny temperature would make infinities of large logits.
    with np.errstate(over="ignore"):
        return softmax((values - values.max()) / temperature)


def filter_top_k(logits: Logits, k: int) -> NDArray[np.int64]:
    """Ids of the k largest logits, largest first, the lowest id of equals first; any k of a row with NaN."""
    if k >= len(logits):
        return np.argsort(-logits, kind="stable")
    if k == 1:
        return np.array([int(logits.argmax())])
    largest = logits.max()
    if math.isnan(largest):  # which compares with nothing
        return np.arange(k)
    # A large vocabulary has few tokens near the top, and it is cheaper to find those first.
    near = np.flatnonzero(logits > largest - TIE_MARGIN_LOGITS)
    if k <= len(near) < len(logits):
        return near[filter_top_k(logits[near], k)]
    threshold = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > threshold)
    equal = np.flatnonzero(logits == threshold)[: k - len(above)]
    selected = np.concatenate([above, equal])
    return selected[np.lexsort((selected, -logits[selected]))]


def filter_top_p(p: Probabilities, top_p: float) -> NDArray[np.int64]:
    """Indices of the fewest likeliest outcomes that hold `top_p` of the mass, likeliest first."""
    for k in (512, len(p)):  # rarely the second: sorting a whole vocabulary costs milliseconds
        likeliest = filter_top_k(p, k)
        n = int(np.searchsorted(np.cumsum(p[likeliest]), top_p)) + 1
        if n <= k:
            break
    return likeliest[:n]


def filter_typical_p(p: Probabilities, typical_p: float) -> NDArray[np.int64]:
    """Indices of the fewest outcomes with more than `typical_p` of the mass whose surprise is closest to the
    entropy (Meister et al., arXiv:2202.00666)."""
    possible = np.flatnonzero(p)
    surprise = -np.log(p[possible])
    order = np.argsort(np.abs(surprise - p[possible] @ surprise), kind="stable")
    n = int(np.searchsorted(np.cumsum(p[possible][order]), typical_p, side="right")) + 1
    return possible[order[:n]]


def filter_xtc(p: Probabilities, threshold: float) -> NDArray[np.int64]:
    """Indices of what XTC ("exclude top choices") leaves: of the outcomes with at least `threshold` of the
    mass only the least likely, and all below. Everything where at most one reaches it."""
    top = np.flatnonzero((p >= threshold) & (p > 0.0))
    if threshold > 0.5 or len(top) < 2:
        return np.arange(len(p))
    # The lowest ids of equals go first, as everywhere.
    last = top[np.lexsort((-top, p[top]))[0]]
    return np.flatnonzero((p < threshold) | (np.arange(len(p)) == last))


def softmax(values: NDArray[np.float64]) -> Probabilities:
    e = np.exp(values - values.max())
    out: Probabilities = e / e.sum()
    return out


def logprob(logits: Logits, token: int, n_top: int = 0) -> tuple[float, tuple[tuple[int, float], ...]]:
    """(log-probability of `token`, the `n_top` likeliest tokens with theirs, best first), in nats, by the
    model's softmax before any sampler."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= math.log(np.exp(values).sum())
    likeliest = filter_top_k(values, min(n_top, len(values))) if n_top else ()
    return float(values[token]), tuple((int(t), float(values[t])) for t in likeliest)
