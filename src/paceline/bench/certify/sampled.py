"""Is sampled output drawn from the target's own distribution? The loop runs thousands of times to tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.bench.certify.frequencies import p_value, smallest_bias
from paceline.bench.certify.held import Context, FixedRowsTarget, SamplingSetup, first_q, select_contexts
from paceline.bench.certify.laws import TESTS, ContextCounts
from paceline.speculative.loop import ActiveRequest, advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling, argmax

# The chance that a certificate is refused to a system that is exact, however often one looks.
FALSE_ALARM = 1e-3
CHUNK = 100  # runs of each context between two looks
ENDINGS = 50  # runs after each context in search of texts that go on behind their end
SUSPICIOUS, LONGER = 0.03, 3  # below such a p-value it goes on, for up to so many times the runs


@dataclass(frozen=True)
class SampledCheck:
    """runs: of all contexts together.
    p_values: of each test, those of the single contexts and last that of all together; they hold whenever one
    looks.
    level: the p-value below which one counts as biased, corrected for their number.
    smallest_bias: of first tokens, that would have been found 99 times in 100.
    overruns: texts that went on behind their end. ties: places where greedy output was not the lowest of the
    likeliest tokens. Both must be 0."""

    contexts: int
    runs: int
    accepted: int
    drafted: int
    level: float
    p_values: dict[str, tuple[float, ...]]
    smallest_bias: float
    overruns: int
    ties: int

    @property
    def passed(self) -> bool:
        """Where nothing was drafted nothing was checked."""
        unbiased = self.drafted > 0 and smallest_p_value(self.p_values) >= self.level
        return unbiased and self.overruns == self.ties == 0

    def as_dict(self) -> dict[str, Any]:
        figures = {"passed": self.passed} | asdict(self)
        p_values = figures.pop("p_values")
        return figures | {test: {"p_values": values} for test, values in p_values.items()}


class ContextRuns:
    """Two tokens decoded after one context, again and again with new seeds.

    Every other draft is cut to depth 1: what then comes of its first token is known exactly, and the token
    after a whole accepted path, drawn from the last row, falls within the two that are counted.
    """

    def __init__(self, loop: SamplingSetup, context: Context, planned: int, seed: Sequence[int]) -> None:
        self._loop, self.context = loop, context
        self._random = np.random.default_rng(seed)
        budget = loop.budget
        depths = (1, budget.depth) if budget.depth > 1 else (1,)
        self.policies = [
            (d == 1, FixedPolicy(budget.limited_to(d, budget.nodes, budget.width))) for d in depths
        ]
        self.counted = ContextCounts(loop, context, planned / len(depths))
        self.n = self.drafted = self.accepted = 0

    def go_on(self, times: int) -> None:
        loop = self._loop
        for _ in range(times):
            shallow, policy = self.policies[self.n % len(self.policies)]
            request = start_sampled_request(loop, self.context, int(self._random.integers(2**32)))
            step = advance_requests(loop.target, loop.drafter, policy, [request])[0][1]
            tokens = step.tokens
            if len(tokens) == 1:
                tokens += advance_requests(loop.target, loop.drafter, policy, [request])[0][1].tokens
            request.close()
            self.n += 1
            self.drafted += request.stats.drafted
            self.accepted += request.stats.accepted
            self.counted.add(step, tokens[1], shallow)


def check_sampled(
    loop: SamplingSetup, places: Sequence[Context], n: int, runs: int, seed: int, tick: Callable[[], None]
) -> SampledCheck:
    """`runs` after each of the `n` best of `places`: fewer where a bias is found sooner or nothing is drafted
    there, more where one is suspected. Ticks after every CHUNK of them."""
    contexts = select_contexts(loop, places, n)
    overruns, ties = count_overruns(loop, contexts, seed), count_wrong_ties(loop, places)
    every = [ContextRuns(loop, context, runs, [seed, number]) for number, context in enumerate(contexts)]
    level = FALSE_ALARM / (len(TESTS) * (len(every) + 1))
    active, done = every, 0
    while True:
        for one in active:
            one.go_on(min(CHUNK, runs - done % runs))
            tick()
        done += min(CHUNK, runs - done % runs)
        found = {test: p_values([one.counted.evidence(test) for one in every]) for test in TESTS}
        enough = runs * (LONGER if smallest_p_value(found) < SUSPICIOUS else 1)
        if overruns or ties or smallest_p_value(found) < level or done >= enough:
            break
        # Nothing is verified where nothing was drafted, and a bias is there to be seen elsewhere.
        active = [one for one in every if one.drafted] or every
    firsts = [table for one in every for table in one.counted.tables("first_token")]
    return SampledCheck(
        contexts=len(every),
        runs=sum(one.n for one in every),
        accepted=sum(one.accepted for one in every),
        drafted=sum(one.drafted for one in every),
        level=level,
        p_values=found,
        smallest_bias=smallest_bias(firsts, level, seed),
        overruns=overruns,
        ties=ties,
    )


def p_values(evidence: Sequence[float]) -> tuple[float, ...]:
    """The p-values of the contexts, and that of all together."""
    return tuple(map(p_value, [*evidence, sum(evidence)]))


def smallest_p_value(p_values: dict[str, tuple[float, ...]]) -> float:
    return min(map(min, p_values.values()))


def start_sampled_request(loop: SamplingSetup, context: Context, seed: int) -> ActiveRequest:
    """Start a request after `context`. The checks drive decoding themselves, not through an engine: they need
    each Step with its draft tree, which no output of an engine carries."""
    loop.place.at = context.row
    request = GenerationRequest(
        prompt=context.tokens,
        max_tokens=loop.budget.depth + 2,
        sampling=loop.sampling,
        seed=seed,
        ignore_eos=True,
    )
    return start_request(loop.target, loop.drafter, request, rule=loop.rule)


def count_overruns(loop: SamplingSetup, contexts: Sequence[Context], seed: int) -> int:
    """How many texts went on behind their end, which is the token that is most often drafted and kept."""
    policy, wrong = FixedPolicy(loop.budget), 0
    for number, context in enumerate(contexts):
        q = first_q(loop, context)
        if q is None:
            continue
        end = int(np.minimum(q, loop.target_distribution(context)).argmax())
        for seed_of_run in np.random.default_rng([seed, number, 1]).integers(2**32, size=ENDINGS).tolist():
            request = start_sampled_request(loop, context, seed_of_run)
            request.eos = frozenset({end})
            step = advance_requests(loop.target, loop.drafter, policy, [request])[0][1]
            request.close()
            last = len(step.tokens) - 1
            if end in step.tokens and (step.tokens.index(end) < last or step.stop_reason != "eos"):
                wrong += 1
    return wrong


def count_wrong_ties(loop: SamplingSetup, contexts: Sequence[Context]) -> int:
    """After how many contexts greedy output was not the lowest of the likeliest tokens, with logits rounded
    to whole numbers, so that many are equal."""
    rounded = FixedRowsTarget(loop.target, np.round(loop.target.rows), loop.place)
    greedy = replace(loop, target=rounded, sampling=Sampling())
    policy, wrong = FixedPolicy(loop.budget), 0
    for context in contexts:
        request = start_sampled_request(greedy, context, 0)
        tokens = advance_requests(rounded, loop.drafter, policy, [request])[0][1].tokens
        request.close()
        for i, token in enumerate(tokens):
            row = rounded.rows[loop.place.row(tokens[:i], len(rounded.rows))]
            if token != argmax(row):
                wrong += 1
                break
    return wrong
