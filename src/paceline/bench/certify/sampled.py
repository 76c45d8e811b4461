"""The sampled check: thousands of runs test whether sampled output has the target's distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.bench.certify.frequencies import TESTS, ContextCounts, p_value
from paceline.bench.certify.held import Context, FixedRowsTarget, SamplingSetup, first_q, select_contexts
from paceline.speculative.loop import ActiveRequest, advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling, argmax
from paceline.speculative.stats import Step

FALSE_ALARM = 1e-3  # probability that an exact system fails the check
CHUNK = 100  # runs of each context between two evaluations
ENDINGS = 50  # runs after each context that look for overruns
SUSPICIOUS, LONGER = 0.03, 3  # below this p-value there are up to so many times the runs


@dataclass(frozen=True)
class SampledCheck:
    """Results of the sampled check.
    runs: of all contexts together. p_values: by test, of each context and last of all together; they are
    anytime-valid. level: the p-value below which a test counts as biased, corrected for the number of tests.
    overruns: texts that continued after the end-of-text token. ties: contexts where greedy output was not the
    lowest of equally likely tokens."""

    contexts: int
    runs: int
    accepted: int
    drafted: int
    level: float
    p_values: dict[str, tuple[float, ...]]
    overruns: int
    ties: int

    @property
    def passed(self) -> bool:
        """True if something was drafted and no test failed."""
        unbiased = self.drafted > 0 and smallest_p_value(self.p_values) >= self.level
        return unbiased and self.overruns == self.ties == 0

    def as_dict(self) -> dict[str, Any]:
        record = {"passed": self.passed} | asdict(self)
        p_values = record.pop("p_values")
        return record | {test: {"p_values": values} for test, values in p_values.items()}


class ContextRuns:
    """Repeated decoding of two tokens after one context with new seeds.
    Every other draft is cut to depth 1, where the distribution of its first token's outcome is known exactly.
    The token after a fully accepted path then falls within the two that are counted."""

    def __init__(self, loop: SamplingSetup, context: Context, planned: int, seed: Sequence[int]) -> None:
        self._loop, self.context = loop, context
        self._random = np.random.default_rng(seed)
        full = loop.budget
        depths = (1, full.depth) if full.depth > 1 else (1,)
        self.policies = [(d == 1, FixedPolicy(full.limited_to(d, full.nodes, full.width))) for d in depths]
        self.counted = ContextCounts(loop, context, planned / len(depths))
        self.n = self.drafted = self.accepted = 0

    def run(self, times: int) -> None:
        loop = self._loop
        for _ in range(times):
            shallow, policy = self.policies[self.n % len(self.policies)]
            request = start_sampled_request(loop, self.context, int(self._random.integers(2**32)))
            step = next_step(loop, policy, request)
            tokens = step.tokens
            if len(tokens) == 1:
                tokens += next_step(loop, policy, request).tokens
            request.close()
            self.n += 1
            self.drafted += request.stats.drafted
            self.accepted += request.stats.accepted
            self.counted.add(step, tokens[1], shallow)


def check_sampled(
    loop: SamplingSetup, places: Sequence[Context], n: int, runs: int, seed: int, tick: Callable[[], None]
) -> SampledCheck:
    """Run `runs` times after each of the `n` best contexts, fewer when a bias is found or nothing is drafted
    there and more when one is suspected. tick: called after every CHUNK of them."""
    contexts = select_contexts(loop, places, n)
    overruns, ties = count_overruns(loop, contexts, seed), count_wrong_ties(loop, places)
    all_runs = [ContextRuns(loop, context, runs, [seed, number]) for number, context in enumerate(contexts)]
    level = FALSE_ALARM / (len(TESTS) * (len(all_runs) + 1))
    active, done = all_runs, 0
    while True:
        for one in active:
            one.run(min(CHUNK, runs - done % runs))
            tick()
        done += min(CHUNK, runs - done % runs)
        p_by_test = {test: p_values([run.counted.evidence(test) for run in all_runs]) for test in TESTS}
        enough = runs * (LONGER if smallest_p_value(p_by_test) < SUSPICIOUS else 1)
        if overruns or ties or smallest_p_value(p_by_test) < level or done >= enough:
            break
        # Contexts without drafts verify nothing: spend the runs on the others.
        active = [run for run in all_runs if run.drafted] or all_runs
    counted = [(run.n, run.accepted, run.drafted) for run in all_runs]
    n, accepted, drafted = map(sum, zip(*counted, strict=True))
    return SampledCheck(len(all_runs), n, accepted, drafted, level, p_by_test, overruns, ties)


def p_values(evidence: Sequence[float]) -> tuple[float, ...]:
    """Return the p-values of the contexts, and that of all together."""
    return tuple(map(p_value, [*evidence, sum(evidence)]))


def smallest_p_value(p_values: dict[str, tuple[float, ...]]) -> float:
    return min(map(min, p_values.values()))


def start_sampled_request(loop: SamplingSetup, context: Context, seed: int) -> ActiveRequest:
    """Start a request after `context`. The checks need each Step with its draft tree, so they drive the
    decoding loop without an engine."""
    loop.place.at = context.row
    request = GenerationRequest(
        prompt=context.tokens, max_tokens=loop.budget.depth + 2, sampling=loop.sampling, seed=seed,
        ignore_eos=True,
    )  # fmt: skip
    return start_request(loop.target, loop.drafter, request, rule=loop.rule)


def next_step(loop: SamplingSetup, policy: FixedPolicy, request: ActiveRequest) -> Step:
    return advance_requests(loop.target, loop.drafter, policy, [request])[0][1]


def count_overruns(loop: SamplingSetup, contexts: Sequence[Context], seed: int) -> int:
    """Return the number of texts that continued after their end: the likeliest drafted and accepted token."""
    policy, wrong = FixedPolicy(loop.budget), 0
    for number, context in enumerate(contexts):
        q = first_q(loop, context)
        if q is None:
            continue
        end = int(np.minimum(q, loop.target_distribution(context)).argmax())
        for seed_of_run in np.random.default_rng([seed, number, 1]).integers(2**32, size=ENDINGS).tolist():
            request = start_sampled_request(loop, context, seed_of_run)
            request.eos = frozenset({end})
            step = next_step(loop, policy, request)
            request.close()
            last = len(step.tokens) - 1
            wrong += end in step.tokens and (step.tokens.index(end) < last or step.stop_reason != "eos")
    return wrong


def count_wrong_ties(loop: SamplingSetup, contexts: Sequence[Context]) -> int:
    """Return the number of contexts where greedy output was not the lowest of the likeliest tokens, with
    logits rounded to integers to create ties."""
    rounded = FixedRowsTarget(loop.target, np.round(loop.target.rows), loop.place)
    greedy = replace(loop, target=rounded, sampling=Sampling())
    policy, wrong = FixedPolicy(loop.budget), 0
    for context in contexts:
        request = start_sampled_request(greedy, context, 0)
        tokens = next_step(greedy, policy, request).tokens
        request.close()
        wrong += any(token != argmax(rounded.row_after(tokens[:i])) for i, token in enumerate(tokens))
    return wrong
