"""Recorded conversations that arrive when they like: the real scheduler on a clock that the cost curve moves.

What a request waits for, how many share a pass and what is drafted then come from the code that serves
(speculative/scheduler.py, the policy, the drafters); the seconds of a pass come from the curve.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from reading import ReadingTarget

from paceline.backends.recorded import Recording
from paceline.bench.method import Method
from paceline.bench.replay.replay import MAX_TOKENS_UNLIMITED, ReplayContext, stop_after
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.drafter_factory import make_drafter, make_policy
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import LearningDrafter, Target
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest, Scheduler
from paceline.speculative.stats import Stats
from paceline.system.home import to_stderr

Conversation = Sequence[Recording]


@dataclass(frozen=True, slots=True)
class Served:
    """One request. arrived, first, end: seconds of the clock at its arrival, its first token and its last.
    n_cached: tokens of the prompt that were not read again."""

    arrived: float
    first: float
    end: float
    n_prompt: int
    n_cached: int
    n_tokens: int

    @property
    def ttft(self) -> float:
        return self.first - self.arrived

    @property
    def tpot(self) -> float:
        """Seconds between tokens, 0 where there is only one."""
        return (self.end - self.first) / (self.n_tokens - 1) if self.n_tokens > 1 else 0.0


class Lent(SimulatedTarget):
    """A draft model that others go on using."""

    def close(self) -> None:
        pass


class Replica:
    """One server: a target of `sessions` sessions, drafters and a policy, all on one clock. What it has
    learned stays from one `serve` to the next, unless it is told to forget. A draft model stays open: it is
    its owner's. Raises UsageError for means without costs."""

    def __init__(
        self,
        method: Method,
        recordings: Sequence[Recording],
        means: ReplayContext,
        *,
        sessions: int,
        chunk: int,
    ) -> None:
        costs = known(means)
        self.clock, self.stats = VirtualClock(), Stats()
        record = ReadingTarget(means.vocab, recordings, means.text, sessions=sessions, chunk=chunk)
        self._target = SimulatedTarget(record, costs.target, self.clock, costs.step, prompts=True)
        draft: Target | None = means.draft
        if draft is not None and costs.draft is not None:
            draft = Lent(draft, costs.draft, self.clock, prompts=True)
        drafter, drafting = make_drafter(
            method.drafting, self._target, draft, means.corpora, costs, to_stderr
        )
        self._made = drafter
        self._policy = make_policy(drafting, copy.deepcopy(costs), self.clock)
        self._scheduler = Scheduler(
            self._target,
            drafter,
            self._policy,
            chunk=chunk,
            clock=self.clock,
        )

    def serve(
        self, conversations: Sequence[Conversation], begins: Sequence[float], pause: Callable[[], float]
    ) -> list[Served]:
        """begins: seconds from now to each conversation's first request; every other one follows the end of
        the one before after a `pause`. In the order of their ends."""
        now = self.clock.now
        coming = [(now + begin, at, 0) for at, begin in enumerate(begins)]
        heapq.heapify(coming)
        open_: dict[ScheduledRequest, _Open] = {}
        out: list[Served] = []
        while coming or open_:
            while coming and coming[0][0] <= self.clock.now:
                arrived, at, turn = heapq.heappop(coming)
                one = conversations[at][turn]
                request = GenerationRequest(
                    prompt=one.prompt,
                    max_tokens=MAX_TOKENS_UNLIMITED,
                    should_stop=stop_after(len(one.tokens)),
                    ignore_eos=True,
                )
                job = ScheduledRequest(request)
                self._scheduler.add(job)
                open_[job] = _Open(arrived, at, turn)
            if not open_:
                self.clock.spend(coming[0][0] - self.clock.now)
                continue
            for job, step in self._scheduler.step():
                self.stats.add(step)
                if step.tokens and not open_[job].first:
                    open_[job].first = self.clock.now
            for job, was in self._over(open_):
                out.append(self._served(job, was))
                if was.turn + 1 < len(conversations[was.at]):
                    heapq.heappush(coming, (self.clock.now + pause(), was.at, was.turn + 1))
        return out

    def _over(self, open_: dict[ScheduledRequest, _Open]) -> Iterator[tuple[ScheduledRequest, _Open]]:
        for job in [job for job in open_ if job.state not in ("waiting", "running")]:
            if job.error is not None:
                raise job.error
            yield job, open_.pop(job)

    def _served(self, job: ScheduledRequest, was: _Open) -> Served:
        request = job.active
        assert request is not None  # it has run
        return Served(
            was.arrived, was.first, self.clock.now, request.n_prompt, request.n_cached, request.n_tokens
        )

    def forget(self) -> None:
        """As a server that has just begun."""
        self._target.forget()
        self._policy.forget()
        if isinstance(self._made, LearningDrafter):
            self._made.forget()

    def close(self) -> None:
        self._scheduler.close()
        self._made.close()


@dataclass(slots=True)
class _Open:
    arrived: float
    at: int  # of its conversation
    turn: int
    first: float = field(default=0.0)


def known(means: ReplayContext) -> DecodingCosts:
    if means.costs is None:
        raise UsageError("what passes cost is not known: give a curve (`paceline doctor --json` prints one)")
    if means.draft is not None and means.costs.draft is None:
        raise UsageError(
            "the cost curve knows no draft model: measure both (`paceline doctor -m ... -md ...`)"
        )
    return means.costs


def poisson(n: int, rate: float, seed: int) -> list[float]:
    """When n conversations begin, `rate` of them a second on average."""
    draw, now, out = random.Random(seed), 0.0, []
    for _ in range(n):
        now += draw.expovariate(rate)
        out.append(now)
    return out


def thinking(mean: float, seed: int) -> Callable[[], float]:
    """Pauses, exponential; 0 is none."""
    draw = random.Random(seed)
    return lambda: draw.expovariate(1.0 / mean) if mean else 0.0
