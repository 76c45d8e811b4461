"""Is sampled output drawn from the target's own distribution? The loop runs thousands of times to tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.decode import advance, start
from paceline.core.policy import Fixed
from paceline.core.ports import Budget, Drafter
from paceline.core.sampling import Sampling, probabilities
from paceline.lab.certify.frequencies import RARE, Sample, Tested, judge, pooled
from paceline.lab.certify.held import HeldTarget, Place

# The chance that a certificate is refused to a system that is exact.
FALSE_ALARM = 1e-3
CHUNK = 100  # runs between two ticks


@dataclass(frozen=True)
class Sampled:
    """first, pair: the tests of the first token and of the first two, over all contexts. level: the p-value
    below which either counts as biased, corrected for the number of tests."""

    contexts: int
    runs: int
    accepted: int
    drafted: int
    level: float
    first: Tested
    pair: Tested

    @property
    def passed(self) -> bool:
        """Where nothing was drafted nothing was checked."""
        return self.drafted > 0 and min(*self.first.p_values, *self.pair.p_values) >= self.level

    def as_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "contexts": self.contexts,
            "runs": self.runs,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "level": self.level,
            "first_token": vars(self.first),
            "first_pair": vars(self.pair),
        }


@dataclass(frozen=True)
class Context:
    """tokens: what was said before. row: the recorded row that follows."""

    tokens: Sequence[int]
    row: int


def check_sampled(
    target: HeldTarget,
    drafter: Drafter,
    place: Place,
    contexts: Sequence[Context],
    budget: Budget,
    sampling: Sampling,
    *,
    rule: str,
    runs: int,
    seed: int,
    tick: Callable[[], None],
) -> Sampled:
    """Decode two tokens after each context, `runs` times each with new seeds, and count what came.

    Every other draft is cut to depth 1: only then does the token after a whole accepted path, drawn from the
    last row, fall within the two that are counted.
    """
    policies = (Fixed(budget), Fixed(budget.capped(1, budget.nodes, budget.width)))
    firsts: list[Sample] = []
    pairs: list[Sample] = []
    drafted = accepted = 0
    for number, context in enumerate(contexts):
        place.at = context.row
        counts: Counter[tuple[int, int]] = Counter()
        for run in range(runs):
            if run % CHUNK == 0:
                tick()
            request = start(
                target,
                drafter,
                context.tokens,
                max_tokens=budget.depth + 2,
                sampling=sampling,
                seed=int(np.random.SeedSequence([seed, number, run]).generate_state(1)[0]),
                ignore_eos=True,
                rule=rule,
            )
            tokens: list[int] = []
            while len(tokens) < 2:
                tokens += advance(target, drafter, policies[run % 2], [request])[0].tokens
            request.close()
            drafted += request.stats.drafted
            accepted += request.stats.accepted
            counts[tokens[0], tokens[1]] += 1
        first, pair = stated(target, place, context, sampling, counts)
        firsts.append(first)
        pairs.append(pair)
    level = FALSE_ALARM / (2 * (len(contexts) + 1))
    tests = [judge(samples, level, seed) for samples in (firsts, pairs)]
    return Sampled(len(contexts), runs, accepted, drafted, level, *tests)


def stated(
    target: HeldTarget,
    place: Place,
    context: Context,
    sampling: Sampling,
    counts: Counter[tuple[int, int]],
) -> tuple[Sample, Sample]:
    """(first tokens, first pairs) counted, beside what plain sampling says of them."""
    n, rows = counts.total(), target.rows
    p = probabilities(rows[place.row([], len(rows))], sampling, context.tokens)
    seconds: dict[int, NDArray[np.int64]] = {}
    for (first, second), count in counts.items():
        seconds.setdefault(first, np.zeros(len(p), np.int64))[second] += count
    firsts = np.zeros(len(p), np.int64)
    for first, its in seconds.items():
        firsts[first] = its.sum()
    pair_counts, pair_p = [], []
    for first in np.flatnonzero(p * n >= RARE).tolist():
        row = rows[place.row([first], len(rows))]
        pair_p.append(p[first] * probabilities(row, sampling, [*context.tokens, first]))
        pair_counts.append(seconds.get(first, np.zeros(len(p), np.int64)))
    # Pairs with a rare first token are one outcome.
    pair_p.append(np.array([max(0.0, 1.0 - float(sum(x.sum() for x in pair_p)))]))
    pair_counts.append(np.array([n - sum(int(x.sum()) for x in pair_counts)], np.int64))
    return pooled(firsts, p), pooled(np.concatenate(pair_counts), np.concatenate(pair_p))
