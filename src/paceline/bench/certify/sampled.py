"""The sampled check: thousands of runs test whether sampled output has the target's distribution.

Where both models' rows are known, so is what any exact rule does with a first token x that is drawn from q:
x is drafted and accepted with probability min(p, q)(x), drafted and rejected with q(x) less that, and y is
emitted otherwise with p(y) less min(p, q)(y). This holds for drafts of one token, to which most drafts are
cut. After longer and deterministic drafts y still has probability p(y), and the second token that of its row.

Counts are compared with their law by n KL, the sum of seen * log(seen / expected). For k + 1 outcomes it
exceeds t by chance with probability at most exp(k - t) (t / k)^k, whatever the law and the number of draws
(Agrawal, "Finite-sample concentration of the multinomial in relative entropy", arXiv:1904.02291)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.certify.fixed_rows import Context, FixedRowsTarget, SamplingSetup, select_contexts
from paceline.speculative.loop import ActiveRequest, advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling, argmax
from paceline.speculative.stats import Stats, Step
from paceline.speculative.tree import ROOT, DraftTree

Vector = NDArray[np.float64]
FALSE_ALARM = 1e-3  # probability that an exact system fails the check
DEEP = 4  # every so many runs the draft is not cut
CHUNK = 100  # runs between two ticks
ENDINGS = 20  # runs after each context that look for overruns
# The drafted token and its acceptance; the first token and whether it is the draft; the second token.
TESTS = ("draft", "first_token", "first_pair")
FIRSTS = 3  # likeliest first tokens, after which the second ones are counted
COUNTS = 4 + 3 * FIRSTS  # of each context
RARE = 0.02  # outcomes with a lower probability are counted together
IMPOSSIBLE = 1e-12  # probabilities up to this count as zero


@dataclass(frozen=True)
class SampledCheck:
    """Results of the sampled check.
    runs: of all contexts together. p_values: by test, of each context. level: the p-value below which a test
    counts as biased, corrected for the number of counts. overruns: texts that continued after the end-of-text
    token. ties: contexts where greedy output was not the lowest of equally likely tokens."""

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
        unbiased = self.drafted > 0 and min(map(min, self.p_values.values())) >= self.level
        return unbiased and self.overruns == self.ties == 0

    def as_dict(self) -> dict[str, Any]:
        record = {"passed": self.passed} | asdict(self)
        p_values = record.pop("p_values")
        return record | {test: {"p_values": values} for test, values in p_values.items()}


class ContextCounts:
    """Counts of outcomes after one context, with the law of each."""

    def __init__(self, setup: SamplingSetup, context: Context) -> None:
        self._setup, self._context, full = setup, context, setup.budget
        self._full, self._shallow = (
            FixedPolicy(full.limited_to(d, full.nodes, full.width)) for d in (full.depth, 1)
        )
        self._p, self._q = setup.target_distribution(context), setup.first_q(context)
        accepted = np.zeros_like(self._p) if self._q is None else np.minimum(self._p, self._q)
        self._likely = np.argsort(-(accepted + self._p))[:FIRSTS]
        # By count, which begins with its test. The first token of any rule may also be impossible.
        self.laws: dict[tuple[Any, ...], Vector] = {("first_token", "any"): np.append(self._p, 0.0)}
        self.laws["first_token", "shallow"] = np.concatenate([accepted, self._p - accepted])
        if self._q is not None:
            self.laws["draft",] = np.concatenate([accepted, self._q - accepted])
        self.outcomes: dict[tuple[Any, ...], list[int]] = defaultdict(list)

    def run(self, seed: int, shallow: bool, stats: Stats) -> None:
        """Decode two tokens and count them. shallow: the draft is cut to one token. stats: of all runs."""
        request = start_sampled_request(self._setup, self._context, seed)
        policy = self._shallow if shallow else self._full
        step = next_step(self._setup, policy, request)
        second = step.tokens[1] if len(step.tokens) > 1 else next_step(self._setup, policy, request).tokens[0]
        request.close()
        stats.drafted += request.stats.drafted
        stats.accepted += request.stats.accepted
        self.add(step, second, shallow or self._setup.budget.depth == 1)

    def add(self, step: Step, second: int, shallow: bool) -> None:
        """Count a run's first step and the text's second token. shallow: the draft was cut to one token."""
        tree, first, n = step.tree, step.tokens[0], len(self._p)
        children = tree.children(ROOT)
        q = tree.q[children[0]] if tree.q is not None and children else None
        if shallow and q is not None and self._q is not None and np.array_equal(q, self._q[: len(q)]):
            otherwise = n * (step.path[:1] != (children[0],))
            self.outcomes["draft",].append(tree.tokens[children[0]] + otherwise)
            self.outcomes["first_token", "shallow"].append(first + otherwise)
            self._add_sibling(tree, children)
        else:
            # After a rejection of deterministic drafts, the next token is none of them.
            wrong = tree.q is None and not step.path and first in [tree.tokens[child] for child in children]
            self.outcomes["first_token", "any"].append(n if wrong else first)
        if first in self._likely:
            # What follows an accepted token by itself has the row's distribution only after drafts of one.
            count = "first_pair", first, bool(step.path) if shallow else None
            if count not in self.laws:
                self.laws[count] = self._setup.target_distribution(self._context, [first])
            self.outcomes[count].append(second)

    def _add_sibling(self, tree: DraftTree, children: Sequence[int]) -> None:
        """Count the second sibling of the likeliest draft: it is drawn from its own q."""
        assert tree.q is not None
        assert self._q is not None
        if tree.tokens[children[0]] == self._q.argmax() and len(children) > 1:
            q = tree.q[children[1]]
            if q is not None and np.array_equal(self.laws.setdefault(("draft", "sibling"), q), q):
                self.outcomes["draft", "sibling"].append(tree.tokens[children[1]])

    def p_value(self, test: str) -> float:
        """Return the least p-value of a test's counts."""
        counted = [(n, self.laws[count]) for count, n in self.outcomes.items() if count[0] == test]
        return min((tail_bound(*divergence(n, law)) for n, law in counted), default=1.0)


def divergence(outcomes: Sequence[int], law: Vector) -> tuple[float, int]:
    """Return n KL and k; infinite after an impossible outcome."""
    counts, often = np.bincount(outcomes, minlength=len(law)), law >= RARE
    if counts[law <= IMPOSSIBLE].any():
        return math.inf, 0
    seen = np.append(counts[often], counts[~often].sum())
    expected = np.append(law[often], law[~often].sum()) * (len(outcomes) / law.sum())
    some = seen > 0
    return float(seen[some] @ np.log(seen[some] / expected[some])), int(often.sum())


def tail_bound(t: float, k: int) -> float:
    """Return an upper bound of the probability of n KL >= t."""
    if t <= k or math.isinf(t):
        return float(t <= k)
    return math.exp(k - t + k * math.log(t / k)) if k else math.exp(-t)


def check_sampled(
    setup: SamplingSetup, places: Sequence[Context], n: int, runs: int, seed: int, tick: Callable[[], None]
) -> SampledCheck:
    """Run `runs` times after each of the `n` best contexts, up to the first that shows a mistake.
    tick: called after every CHUNK of them."""
    contexts = select_contexts(setup, places, n)
    overruns, ties = count_overruns(setup, contexts, seed), count_wrong_ties(setup, places)
    level, stats = FALSE_ALARM / (COUNTS * len(contexts)), Stats()
    p_values: dict[str, tuple[float, ...]] = dict.fromkeys(TESTS, ())
    for number, context in enumerate(contexts):
        counts = ContextCounts(setup, context)
        for i, seed_of_run in enumerate(seeds(seed, number, n=runs)):
            counts.run(seed_of_run, i % DEEP != 0, stats)
            if (i + 1) % CHUNK == 0 or i + 1 == runs:
                tick()
        p_values = {test: (*earlier, counts.p_value(test)) for test, earlier in p_values.items()}
        if overruns or ties or min(map(min, p_values.values())) < level:
            break
    return SampledCheck(
        number + 1, runs * (number + 1), stats.accepted, stats.drafted, level, p_values, overruns, ties
    )


def seeds(*stream: int, n: int) -> list[int]:
    return [int(seed) for seed in np.random.default_rng(stream).integers(2**32, size=n)]


def start_sampled_request(setup: SamplingSetup, context: Context, seed: int) -> ActiveRequest:
    """Start a request after `context`. The checks need each Step with its draft tree, so they drive the
    decoding loop without an engine."""
    setup.place.at = context.row
    request = GenerationRequest(
        prompt=context.tokens, max_tokens=setup.budget.depth + 2, sampling=setup.sampling, seed=seed,
        ignore_eos=True,
    )  # fmt: skip
    return start_request(setup.target, setup.drafter, request, rule=setup.rule)


def next_step(setup: SamplingSetup, policy: FixedPolicy, request: ActiveRequest) -> Step:
    return advance_requests(setup.target, setup.drafter, policy, [request])[0][1]


def count_overruns(setup: SamplingSetup, contexts: Sequence[Context], seed: int) -> int:
    """Return the number of texts that continued after their end: the likeliest drafted and accepted token."""
    policy, wrong = FixedPolicy(setup.budget), 0
    for number, context in enumerate(contexts):
        if (q := setup.first_q(context)) is None:
            continue
        end = int(np.minimum(q, setup.target_distribution(context)).argmax())
        for seed_of_run in seeds(seed, number, 1, n=ENDINGS):
            request = start_sampled_request(setup, context, seed_of_run)
            request.eos = frozenset({end})
            step = next_step(setup, policy, request)
            request.close()
            last = len(step.tokens) - 1
            wrong += end in step.tokens and (step.tokens.index(end) < last or step.stop_reason != "eos")
    return wrong


def count_wrong_ties(setup: SamplingSetup, contexts: Sequence[Context]) -> int:
    """Return the number of contexts where greedy output was not the lowest of the likeliest tokens, with
    logits rounded to integers to create ties."""
    rounded = FixedRowsTarget(setup.target, np.round(setup.target.rows), setup.place)
    greedy = replace(setup, target=rounded, sampling=Sampling())
    policy, wrong = FixedPolicy(setup.budget), 0
    for context in contexts:
        request = start_sampled_request(greedy, context, 0)
        tokens = next_step(greedy, policy, request).tokens
        request.close()
        wrong += any(token != argmax(rounded.row_after(tokens[:i])) for i, token in enumerate(tokens))
    return wrong
