"""How fast a pair will be: the policy's own objective (core/rate.py), on what is expected of the drafts.

At the first token a draft model knows whether it is sure. What is verified may depend on that, as it does in
every step of the policy, and that is most of what deciding gains where passes are dear. With `a` for the
acceptance,
    first token   right with SURE where the draft is sure, with UNSURE where not; sure so often that all
                  of them together are right with a
    after it      right with a
Checked on the embedded pair, 300M (docs/log/peers.md, drafts of fixed lengths 2, 4, 8 and 16): with a = 0.77
it says 1.36, 2.17, 2.93 and 3.30 accepted tokens a step, where 1.34, 2.07, 2.84 and 3.32 were counted.

A chain of K tokens, and m second guesses beside its likeliest tokens, are tried for every K and m, each kind
of step for itself, at the rate that all of them reach together. That is the largest number of tokens over
time, K = 0 being plain decoding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.cost import Costs
from paceline.core.theory import break_even

Floats = NDArray[np.float64]

LONGEST = 31  # what the policy drafts at most (core/settings.py)
# Of the embedded pair's drafts in docs/log/peers.md: with p_min 0.5 and n = 2, 0.95 of 1.01 tokens a step
# were right, and without it 1.34 of 1.95. So half of the tokens are right with 0.94, the other half with
# 0.42.
SURE, UNSURE = 0.95, 0.45
# Of the times that the likeliest token is wrong, how often the second is right; less where the draft knows
# less. Judgement.
SECOND = 0.3
CLOSE = 1e-9
EVEN = 16  # the longest draft whose break-even is told
FINE = 2**20  # steps of an acceptance that is looked for


@dataclass(frozen=True)
class Kind:
    """Of steps: a share of them, and the survival of 1 to LONGEST drafted tokens, and of a second guess
    beside each. drafted: tokens that are drafted before it is known that a step is of this kind."""

    share: float
    survival: Floats
    beside: Floats
    drafted: int = 0


@dataclass(frozen=True)
class Best:
    """speedup: over plain decoding, 1 where nothing is drafted. n_draft: the longest draft worth verifying, 0
    where plain decoding is fastest. width: 2 where second guesses pay."""

    speedup: float
    n_draft: int
    width: int


PLAIN = Best(1.0, 0, 1)


def of_a_model(acceptance: float, *, tree: bool = True) -> list[Kind]:
    """The kinds of steps of a draft model. tree: whether it may branch."""
    a = acceptance
    sure, unsure = max(SURE, a), min(UNSURE, a)
    share = 1.0 if a >= SURE else max(0.0, (a - unsure) / (sure - unsure))
    kinds = [_kind(share, sure, a, tree, 1), _kind(1.0 - share, unsure, a, tree, 1)]
    return [kind for kind in kinds if kind.share > 0.0]


def of_a_copier(share: float, acceptance: float) -> list[Kind]:
    """Of a drafter that has a guess, which costs nothing, at a share of the steps."""
    nothing = np.zeros(LONGEST)
    return [_kind(share, acceptance, acceptance, False, 0), Kind(1.0 - share, nothing, nothing)]


def best(kinds: Sequence[Kind], costs: Costs, depth: int) -> Best:
    """The fastest way to use such drafts after so many tokens."""
    passes, token = seconds(costs, depth)
    tables = [_table(kind, passes, token, costs.step) for kind in kinds]
    plain = float(passes[1]) + costs.step
    rate = 1.0 / plain
    while True:
        tokens = took = 0.0
        places = []
        for kind, (gained, takes) in zip(kinds, tables, strict=True):
            place = np.unravel_index(np.argmax(gained - rate * takes), takes.shape)
            places.append(place)
            tokens += kind.share * gained[place]
            took += kind.share * takes[place]
        if tokens / took <= rate * (1.0 + CLOSE):
            break
        rate = tokens / took
    speedup = float(rate * plain)
    longest = max(int(k) for k, _ in places)
    if speedup <= 1.0 + CLOSE or not longest:
        return PLAIN
    return Best(speedup, longest, 2 if any(m for _, m in places) else 1)


def needed(costs: Costs, depth: int, *, tree: bool = True) -> float | None:
    """The least acceptance at which drafting with a model gains anything; None where none is enough."""

    def pays(acceptance: float) -> bool:
        return best(of_a_model(acceptance, tree=tree), costs, depth).n_draft > 0

    return bisect_left(range(FINE), True, key=lambda i: pays(i / FINE)) / FINE if pays(1.0) else None


def break_evens(costs: Costs, depth: int) -> dict[int, float | None]:
    """By K, the acceptance at which drafts of just K tokens, at every step, neither gain nor lose."""
    passes, token = seconds(costs, depth)
    plain = float(passes[1]) + costs.step
    return {
        k: break_even((float(passes[1 + k]) + k * token + costs.step) / plain, k) for k in range(1, EVEN + 1)
    }


def seconds(costs: Costs, depth: int) -> tuple[Floats, float]:
    """Of the target's passes by rows, and of a drafted token. A pass over several rows that was faster than
    one over a single row was measured badly."""
    passes = np.array(costs.target.curve(2 * LONGEST + 1, depth))
    passes[1:] = np.maximum(passes[1], passes[1:])
    return passes, 0.0 if costs.draft is None else costs.draft.seconds(1, depth)


def _kind(share: float, first: float, rest: float, tree: bool, drafted: int) -> Kind:
    survival = first * rest ** np.arange(LONGEST, dtype=np.float64)
    reached = np.concatenate(([1.0], survival[:-1]))
    second = SECOND * np.minimum(1.0, np.array([first, *[rest] * (LONGEST - 1)]) / UNSURE)
    beside = second * (reached - survival) if tree else np.zeros(LONGEST)
    return Kind(share, survival, beside, drafted)


def _table(kind: Kind, passes: Floats, token: float, other: float) -> tuple[Floats, Floats]:
    """Tokens and seconds of the drafts that may be verified, by K and m. Second guesses are the m likeliest,
    beside tokens that are drafted anyway."""
    k = np.arange(LONGEST + 1)[:, None]
    m = np.arange(LONGEST + 1)[None, :]
    beside = np.where(np.arange(LONGEST)[None, :] < k, kind.beside[None, :], 0.0)
    likeliest = np.cumsum(np.sort(beside, axis=1)[:, ::-1], axis=1)
    along = np.concatenate(([0.0], np.cumsum(kind.survival)))
    gained = 1.0 + along[:, None] + np.concatenate((np.zeros((LONGEST + 1, 1)), likeliest), axis=1)
    took = passes[1 + k + m] + np.maximum(k, kind.drafted) * token + other
    possible = m <= np.count_nonzero(beside, axis=1)[:, None]
    return gained, np.where(possible, took, np.inf)
