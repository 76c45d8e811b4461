"""Random numbers of a request, and the noise that its drafter may know.

Plain sampling uses the Gumbel-max trick: every token has an exponential random number, hashed from the seed,
the position and the token id. The least number over probability wins, which happens with probability p_i.

A draft model with the same numbers often draws the same token: at a total variation distance d with a
probability of at least (1 - d) / (1 + d) (Daliri, Musco and Suresh, arXiv:2408.07978). The target's draw
depends on no draft, so a seed gives the same text as plain decoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.sampling import (
    CANDIDATE_MARGIN_LOGITS,
    Logits,
    Probabilities,
    Sampling,
    TokenDistribution,
    target_distribution,
)

# SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD_RANGE = 1 << 64
# Made once: converting a number takes as long as the arithmetic of a short array.
_GAMMA, _FIRST, _SECOND, _12, _27, _30, _31 = map(np.uint64, (GAMMA, FIRST, SECOND, 12, 27, 30, 31))
MIN_TEMPERATURE = 1e-3  # below it, logits / temperature may overflow
RNG_NAME = "gumbel-splitmix64"  # in recordings


class SeededRng:
    """The generator of one request. `accept` and `draw` consume a stream; `draw_at` is a pure function."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._key = int(np.random.SeedSequence([seed, 2]).generate_state(1, np.uint64)[0])

    def accept(self, probability: float) -> bool:
        return bool(self._random.random() < probability)

    def draw(self, p: Probabilities) -> int:
        possible = np.flatnonzero(p)
        mass = np.cumsum(p[possible])
        # Scaled by the sum, which rounding may leave slightly off one.
        i = int(np.searchsorted(mass, self._random.random() * mass[-1], side="right"))
        return int(possible[min(i, len(possible) - 1)])

    def draw_at(self, place: int, row: TokenDistribution) -> int:
        with np.errstate(divide="ignore", over="ignore"):  # for tokens of tiny probability
            return int(row.ids[(self.exponential(place, row.ids) / row.p).argmin()])

    def exponential(self, place: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the exponential random numbers (mean 1) of the tokens `ids` at a position."""
        z = ids.astype(np.uint64)
        z *= _GAMMA
        z += np.uint64(_mix_int((self._key + GAMMA * place) % WORD_RANGE))
        numbers = np.log(uniform(_mix(z)))
        np.negative(numbers, out=numbers)
        return numbers


def _mix_int(z: int) -> int:
    """Hash one number; as an array it would take as long as a whole vocabulary."""
    z = (z ^ z >> 30) * FIRST % WORD_RANGE
    z = (z ^ z >> 27) * SECOND % WORD_RANGE
    return z ^ z >> 31


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash each number in place: copies would cost more than the arithmetic."""
    z ^= z >> _30
    z *= _FIRST
    z ^= z >> _27
    z *= _SECOND
    z ^= z >> _31
    return z


def uniform(z: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map to the open interval (0, 1): 52 bits plus one half, which a float holds exactly."""
    out = (z >> _12).astype(np.float64)
    out += 0.5
    out *= 2.0**-52
    return out


@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """The sampler and random numbers of a request's next tokens. place: position of the next token."""

    sampling: Sampling
    rng: SeededRng
    place: int = 0

    @staticmethod
    def of(sampling: Sampling, rng: SeededRng) -> GumbelNoise | None:
        """Return the noise of a request, None if it is greedy.
        Penalties and logit biases are left out; a draft is hardly worse without them."""
        if sampling.greedy:
            return None
        unchanged: dict[str, Any] = {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        plain = replace(sampling, **unchanged, dry_multiplier=0.0, logit_bias={})
        return GumbelNoise(plain, rng)

    def at(self, place: int) -> GumbelNoise:
        return GumbelNoise(self.sampling, self.rng, place)

    def perturbed(self, logits: Logits, depth: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the tokens that may win `depth` tokens behind the root, with perturbed log-probabilities.
        The largest is drawn; all are shifted by one constant. Tokens far below the likeliest are left out."""
        temperature = self.sampling.temperature
        margin = (
            math.inf if self.sampling.reads_whole_row else CANDIDATE_MARGIN_LOGITS * max(1.0, temperature)
        )
        ids = np.flatnonzero(logits > logits.max() - margin)
        if self.sampling.filtered or temperature < MIN_TEMPERATURE:
            row = target_distribution(logits[ids], self.sampling, ())
            ids = ids[row.ids]
            with np.errstate(divide="ignore"):
                weights = np.log(row.p)
        else:  # no normalisation: this runs between any two passes of a draft model
            weights = logits[ids].astype(np.float64)
            weights /= temperature
        weights -= np.log(self.rng.exponential(self.place + depth, ids))
        return ids, weights
