"""A request's randomness, and the part of it that a drafter may know.

Plain sampling draws a token by a race (the Gumbel-max trick): at each place of the text every token has an
exponential number, made from the seed, the place and the token's id, and the least number over probability
wins, which token i does with probability p_i. A draft model that runs the same race with its probabilities
finds the same winner with a chance of at least (1 - d) / (1 + d) at a total variation distance of d (Daliri,
Musco and Suresh, arXiv:2408.07978). The target's draw depends on nothing that was drafted: the text of a seed
is that of plain decoding, token by token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.sampling import (
    TIE_MARGIN_LOGITS,
    Logits,
    Probabilities,
    Sampling,
    TokenDistribution,
    target_distribution,
)

# SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD_RANGE = 1 << 64
# Numbers as arrays take them: making one takes as long as a short array's arithmetic.
_GAMMA, _FIRST, _SECOND, _12, _27, _30, _31 = map(np.uint64, (GAMMA, FIRST, SECOND, 12, 27, 30, 31))
MIN_TEMPERATURE = 1e-3  # a temperature below which a logit over it may be no number
RNG_NAME = "gumbel-splitmix64"  # how a record says that its tokens were drawn so


class SeededRng:
    """A request's own randomness. `accept` and `draw` use one number of a stream each, `draw_at` none."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._key = int(np.random.SeedSequence([seed, 2]).generate_state(1, np.uint64)[0])

    def accept(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def draw(self, p: Probabilities) -> int:
        selected = np.flatnonzero(p)
        mass = np.cumsum(p[selected])
        # Scaled by the sum: rounding may leave it a hair off one.
        i = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        return int(selected[min(i, len(selected) - 1)])

    def draw_at(self, place: int, row: TokenDistribution) -> int:
        with np.errstate(divide="ignore", over="ignore"):  # of tokens that are next to impossible
            return int(row.ids[(self.exponential(place, row.ids) / row.p).argmin()])

    def exponential(self, place: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """The numbers of the tokens `ids` at a place: of mean 1, all independent."""
        z = ids.astype(np.uint64)
        z *= _GAMMA
        z += np.uint64(_mix_array((self._key + GAMMA * place) % WORD_RANGE))
        numbers = np.log(uniform(_mix(z)))
        np.negative(numbers, out=numbers)
        return numbers


def _mix_array(z: int) -> int:
    """Of a single number, which as an array would take as long as all the tokens' do."""
    z = (z ^ z >> 30) * FIRST % WORD_RANGE
    z = (z ^ z >> 27) * SECOND % WORD_RANGE
    return z ^ z >> 31


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`_mixed` of each, in place: at a large vocabulary copies take longer than the arithmetic."""
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    return z


def uniform(z: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Between 0 and 1, and neither: 52 bits and a half, which a float holds exactly."""
    out = (z >> _12).astype(np.float64)
    out += 0.5
    out *= 2.0**-52
    return out


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """What one request's tokens will be drawn with: its sampler and its numbers. place: of the next token."""

    sampling: Sampling
    rng: SeededRng
    place: int = 0

    @staticmethod
    def of(sampling: Sampling, rng: SeededRng) -> GumbelNoise | None:
        """None where nothing is left to chance. What the text so far does to a row is left out: a draft is no
        worse for it."""
        if sampling.greedy:
            return None
        plain = replace(
            sampling, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}
        )
        return GumbelNoise(plain, rng)

    def at(self, place: int) -> GumbelNoise:
        return GumbelNoise(self.sampling, self.rng, place)

    def perturbed(self, logits: Logits, depth: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The tokens that a model of these logits [n_vocab] might draw behind `depth` drafted ones, and for
        each its log-probability with the noise, up to a number that all have in common: the greatest is
        drawn. What is far from the likeliest is left out."""
        temperature = self.sampling.temperature
        ids = np.flatnonzero(logits > logits.max() - TIE_MARGIN_LOGITS * max(1.0, temperature))
        if self.sampling.filtered or temperature < MIN_TEMPERATURE:
            row = target_distribution(logits[ids], self.sampling, ())
            ids = ids[row.ids]
            with np.errstate(divide="ignore"):
                weights = np.log(row.p)
        else:  # nothing to add up: this runs between any two passes of a draft model
            weights = logits[ids].astype(np.float64)
            weights /= temperature
        weights -= np.log(self.rng.exponential(self.place + depth, ids))
        return ids, weights
