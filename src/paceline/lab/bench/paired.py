"""Whether one system is faster than another, or only was by chance: a paired test over items.

Both answered the same items in the same minutes, so that each item is one comparison. Were the two equally
fast, each item's difference could as well have come out the other way round: the test turns signs at
random and asks how often the mean difference gets as large as it was. Of five items there are 32 ways to
turn them, and two of these are as far from nothing as can be: 0.06. So fewer than six items never tell a
difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from paceline.lab.bench.measurement import Group

CHANCE = 0.05  # how often equal systems may be called different
EXACT = 14  # items up to which all ways to turn the signs are tried
TRIES = 4_000


def differ(groups: Sequence[Group], system: str, to: str) -> bool:
    """Whether the speeds of two systems differ clearly, over the items that both answered."""
    return chance(differences(groups, system, to)) < CHANCE


def differences(groups: Sequence[Group], system: str, to: str) -> list[float]:
    """By item: the logarithm of how much faster one system was, over all rounds of the item."""
    sums: dict[str, list[float]] = {}
    for group in groups:
        if {system, to} <= set(group.measurements):
            ours, its = group.measurements[system], group.measurements[to]
            of = sums.setdefault(group.item, [0.0] * 4)
            for i, value in enumerate((ours.tokens, ours.seconds, its.tokens, its.seconds)):
                of[i] += value
    return [math.log((a / b) / (c / d)) for a, b, c, d in sums.values() if min(a, b, c, d) > 0]


def chance(differences: Sequence[float], seed: int = 0) -> float:
    """How often signs turned at random give a mean as far from 0 as that of the differences, or farther."""
    n = len(differences)
    if not n:
        return 1.0
    if n <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(TRIES, n))
        signs[0] = 1.0  # what was measured is one of the ways
    values = np.asarray(differences)
    sums = np.abs(signs @ values)
    return float((sums >= abs(values.sum()) * (1 - 1e-9)).mean())
