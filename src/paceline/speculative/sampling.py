"""From logits to the distribution that plain sampling draws from.

The order is llama.cpp's (common/common.h, `samplers`): logit bias, penalties over the last `repeat_last_n`
tokens, DRY, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature. The nucleus is thus chosen before
the temperature is applied. A grammar's mask comes first, so that every filter works on the allowed tokens.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import LogitsError, UsageError
from paceline.speculative.sampling_settings import Sampling as Sampling
from paceline.speculative.validation import MAX_LOGIT

Logits = NDArray[np.float32] | NDArray[np.float64]  # [n_vocab]
Probabilities = NDArray[np.float64]  # [n_vocab], or one per token left by the filters
Mask = NDArray[np.bool_]  # [n_vocab]

MAX_REPEAT = 512  # tokens of a repeat that DRY looks at, which bounds its time
FLOAT_MAX_LOG = 88.7228391  # llama.cpp's bound of DRY's exponent, times log(base)
CANDIDATE_MARGIN_LOGITS = 8.0  # below the largest logit: where the top tokens are looked for first


def describe_invalid_logits(largest: float) -> str:
    """Return what is wrong with a row, given its largest logit (NaN if any logit is); "" if nothing is.
    Single logits may be minus infinity: such tokens are impossible."""
    if math.isfinite(largest):
        return ""
    if math.isnan(largest):
        return "NaN"
    return "infinity" if largest > 0.0 else "minus infinity for every token"


def require_numbers(largest: float) -> None:
    """Raise LogitsError if the largest logit shows that a row is invalid."""
    if not math.isfinite(largest):
        raise LogitsError(f"its logits are not numbers ({describe_invalid_logits(largest)})")


def adjust_logits(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> Logits:
    """Apply logit bias, penalties and mask to a copy; return `logits` if there are none.
    history: the tokens up to the row's own.
    Raises LogitsError for invalid logits, UsageError if bias and mask leave no token."""
    edited = sampling.edits_logits or mask is not None
    if not edited or mask is not None:  # a mask could hide invalid logits; biases and penalties cannot
        require_numbers(logits.max())
    if not edited:
        return logits
    out = logits.copy()
    for token, bias in sampling.logit_bias.items():
        if token < len(out):
            out[token] += bias
    if sampling.counts_tokens:
        for token, count in Counter(history[-sampling.repeat_last_n :]).items():
            # As in llama.cpp: dividing a negative logit would make its token likelier.
            value = out[token]
            value = value / sampling.repeat_penalty if value > 0 else value * sampling.repeat_penalty
            out[token] = value - count * sampling.frequency_penalty - sampling.presence_penalty
    if sampling.dry:
        for token, penalty in dry_penalties(sampling, history).items():
            out[token] -= penalty
    if mask is not None:
        out[~mask] = -math.inf
    largest = out.max()
    if largest == -math.inf:
        require_numbers(logits.max())
        raise UsageError("no token can follow: a logit bias or the grammar forbids every one")
    require_numbers(largest)
    return out


def dry_penalties(sampling: Sampling, history: Sequence[int]) -> dict[int, float]:
    """Return the penalties of DRY ("don't repeat yourself"; llama_sampler_dry_apply in llama-sampler.cpp).
    A token that would continue a repeat of n tokens, n being at least `dry_allowed_length`, has the penalty
    dry_multiplier * dry_base ** (n - dry_allowed_length). No repeat reaches over a sequence breaker."""
    text, allowed = np.array(history[-sampling.dry_penalty_last_n :]), sampling.dry_allowed_length
    longest = len(text)
    for back in range(min(longest, MAX_REPEAT) if sampling.dry_breakers else 0):
        tails = sampling.dry_breakers.get(int(text[-1 - back]), ())
        following = tuple(text[len(text) - back :][: max(map(len, tails))].tolist()) if tails else ()
        if found := [len(tail) for tail in tails if following[: len(tail)] == tail]:
            longest = back - max(found)
            break
    if len(text) <= allowed or longest < allowed:
        return {}
    # Longer repeats have no larger penalty.
    steepest = int(FLOAT_MAX_LOG / math.log(sampling.dry_base)) if sampling.dry_base > 1.000001 else 0
    longest = min(longest, MAX_REPEAT, allowed + (steepest or MAX_REPEAT))
    ends = np.arange(len(text) - 1)  # of repeats of the text's last n tokens
    repeats: dict[int, int] = {}
    for n in range(longest + 1):  # an end is written once, where its repeat is no longer
        goes_on = (ends > n - 1) & (text[ends - n] == text[-1 - n]) if n < longest else ends < 0
        if n >= allowed:
            repeats.update(dict.fromkeys(text[ends[~goes_on] + 1].tolist(), n))
        ends = ends[goes_on]
        if not len(ends):
            break
    return {
        token: min(sampling.dry_multiplier * sampling.dry_base ** (n - allowed), MAX_LOGIT)
        for token, n in repeats.items()
        if () not in sampling.dry_breakers.get(token, ())
    }


def argmax(logits: Logits) -> int:
    """Return the likeliest token, the lowest id among ties, so that plain and drafted decoding agree.
    Raises LogitsError for invalid logits; numpy's argmax finds NaN, so one comparison is enough."""
    best = int(logits.argmax())
    require_numbers(logits[best])
    return best


@dataclass(frozen=True, slots=True)
class TokenDistribution:
    """The probabilities `p` of the tokens `ids`; all other tokens have probability zero."""

    ids: NDArray[np.int64]
    p: Probabilities

    def of(self, token: int) -> float:
        return float(self.p[self.ids == token].sum())

    def draw(self, rng: Rng) -> int:
        return int(self.ids[rng.draw(self.p)])


class Rng(Protocol):
    """The random choices of verification, as an interface, so that a proof can enumerate every outcome."""

    def accept(self, probability: float) -> bool: ...

    def draw(self, p: Probabilities) -> int: ...

    def draw_at(self, place: int, row: TokenDistribution) -> int:
        """Draw from `row` at position `place` (prompt included); the result is reproducible."""


def target_distribution(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> TokenDistribution:
    """Return the distribution that plain sampling draws from, in float64. Raises like `adjust_logits`."""
    adjusted = adjust_logits(logits, sampling, history, mask)
    if sampling.greedy:
        return TokenDistribution(np.array([argmax(adjusted)]), np.ones(1))
    if sampling.top_n_sigma > 0.0:
        adjusted = filter_top_n_sigma(adjusted, sampling.top_n_sigma)
    # Each filter works on the tokens left by the one before; of ties the lowest ids stay, as in argmax.
    ids = np.arange(len(adjusted))
    if 0 < sampling.top_k < len(adjusted):
        ids = filter_top_k(adjusted, sampling.top_k)
    values = adjusted[ids].astype(np.float64)
    if sampling.typical_p < 1.0:
        inside = filter_typical_p(softmax(values), sampling.typical_p)
        ids, values = ids[inside], values[inside]
    if sampling.top_p < 1.0:
        inside = filter_top_p(softmax(values), sampling.top_p)
        ids, values = ids[inside], values[inside]
    if sampling.min_p > 0.0:
        enough = values >= values.max() + math.log(sampling.min_p)
        ids, values = ids[enough], values[enough]
    p = apply_temperature(values, sampling)
    if sampling.xtc_probability > 0.0:
        # XTC applies at random, so plain sampling draws from the mixture of both outcomes.
        remaining = filter_xtc(softmax(values), sampling.xtc_threshold)
        p *= 1.0 - sampling.xtc_probability
        p[remaining] += sampling.xtc_probability * apply_temperature(values[remaining], sampling)
    return TokenDistribution(ids, p)


def probabilities(
    logits: Logits, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
) -> Probabilities:
    """Return `target_distribution` as an array [n_vocab]."""
    row = target_distribution(logits, sampling, history, mask)
    p = np.zeros(len(logits))
    p[row.ids] = row.p
    return p


def apply_temperature(values: NDArray[np.float64], sampling: Sampling) -> Probabilities:
    """Return the distribution at the temperature, which is dynamic with a `dynatemp_range`: between
    temperature - range and temperature + range, by the entropy (llama_sampler_temp_ext_apply)."""
    temperature, spread = sampling.temperature, sampling.dynatemp_range
    if spread > 0.0:
        if len(values) == 1:
            return np.ones(1)
        p = softmax(values)
        entropy = -float(p[p > 0.0] @ np.log(p[p > 0.0]))
        share = min(1.0, max(0.0, entropy / math.log(len(values)))) ** sampling.dynatemp_exponent
        low = max(0.0, temperature - spread)
        temperature = low + (temperature + spread - low) * share
        if temperature == 0.0:
            return np.asarray(np.arange(len(values)) == values.argmax(), np.float64)
    # Subtract the maximum first: large logits over a tiny temperature would overflow.
    with np.errstate(over="ignore"):
        return softmax((values - values.max()) / temperature)


def filter_top_n_sigma(logits: Logits, n: float) -> Logits:
    """Return the logits with minus infinity for those more than `n` standard deviations below the largest.
    The tokens stay candidates, as in llama.cpp: the dynamic temperature counts them."""
    possible = logits[logits > -math.inf].astype(np.float64)
    return np.where(logits < possible.max() - n * possible.std(), -math.inf, logits)


def filter_top_k(logits: Logits, k: int) -> NDArray[np.int64]:
    """Return the ids of the k largest logits in descending order, ties by id; any k ids for NaN."""
    if k >= len(logits):
        return np.argsort(-logits, kind="stable")
    if k == 1:
        return np.array([int(logits.argmax())])
    largest = logits.max()
    if math.isnan(largest):
        return np.arange(k)
    # A large vocabulary has few tokens near the top, and it is cheaper to find those first.
    near = np.flatnonzero(logits > largest - CANDIDATE_MARGIN_LOGITS)
    if k <= len(near) < len(logits):
        return near[filter_top_k(logits[near], k)]
    threshold = np.partition(logits, len(logits) - k)[len(logits) - k]
    above = np.flatnonzero(logits > threshold)
    equal = np.flatnonzero(logits == threshold)[: k - len(above)]
    top = np.concatenate([above, equal])
    return top[np.lexsort((top, -logits[top]))]


def filter_top_p(p: Probabilities, top_p: float) -> NDArray[np.int64]:
    """Return the indices of the smallest set of likeliest outcomes with mass `top_p`, likeliest first."""
    for k in (512, len(p)):  # rarely the second: sorting a whole vocabulary costs milliseconds
        likeliest = filter_top_k(p, k)
        n = int(np.searchsorted(np.cumsum(p[likeliest]), top_p)) + 1
        if n <= k:
            break
    return likeliest[:n]


def filter_typical_p(p: Probabilities, typical_p: float) -> NDArray[np.int64]:
    """Return the indices of the outcomes whose surprise is closest to the entropy, up to a mass above
    `typical_p` (Meister et al., arXiv:2202.00666)."""
    possible = np.flatnonzero(p)
    surprise = -np.log(p[possible])
    order = np.argsort(np.abs(surprise - p[possible] @ surprise), kind="stable")
    n = int(np.searchsorted(np.cumsum(p[possible][order]), typical_p, side="right")) + 1
    return possible[order[:n]]


def filter_xtc(p: Probabilities, threshold: float) -> NDArray[np.int64]:
    """Return the indices that XTC ("exclude top choices") leaves.
    Of the outcomes with at least `threshold` of the mass it leaves only the least likely."""
    top = np.flatnonzero((p >= threshold) & (p > 0.0))
    if threshold > 0.5 or len(top) < 2:
        return np.arange(len(p))
    # Of ties the highest id stays: lower ids count as likelier, as everywhere.
    last = top[np.lexsort((-top, p[top]))[0]]
    return np.flatnonzero((p < threshold) | (np.arange(len(p)) == last))


def softmax(values: NDArray[np.float64]) -> Probabilities:
    e = np.exp(values - values.max())
    out: Probabilities = e / e.sum()
    return out


def logprob(logits: Logits, token: int, n_top: int = 0) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Return the log-probability of `token`, and the `n_top` likeliest tokens with theirs, best first.
    They are in nats, from the model's softmax before any sampler."""
    values = logits.astype(np.float64)
    values -= values.max()
    values -= math.log(np.exp(values).sum())
    likeliest = filter_top_k(values, min(n_top, len(values))) if n_top else ()
    return float(values[token]), tuple((int(t), float(values[t])) for t in likeliest)
