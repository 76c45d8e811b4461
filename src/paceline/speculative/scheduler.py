"""Continuous batching: the decoding loop over a changing list of requests, with a queue in front.

A request starts when a session is free, prefills in chunks beside decoding requests, and leaves when it is
done, failed or cancelled. Its text does not depend on the other requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from paceline.speculative.chunked_prefill import ChunkSize
from paceline.speculative.errors import BusyError
from paceline.speculative.fair_queue import FairQueue
from paceline.speculative.interfaces import Drafter, Grammar, Target
from paceline.speculative.loop import Clock, advance_requests
from paceline.speculative.policy.interface import DraftPolicy
from paceline.speculative.request import ActiveRequest, GenerationRequest, start_request
from paceline.speculative.stats import Step

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(eq=False)
class ScheduledRequest:
    """A request from its arrival on.
    stop, grammar: see `start_request`."""

    request: GenerationRequest
    stop: Callable[[int], bool] | None = None
    grammar: Grammar | None = None
    active: ActiveRequest | None = None  # the state of decoding; None while waiting
    error: Exception | None = None  # the failure that ended it
    state: State = "waiting"

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running")


class Scheduler:
    """A scheduler that owns and closes its requests. It is not thread-safe.
    chunk: the most prompt tokens of one pass; by default the target's.
    rule: the verification rule for sampled drafts."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        policy: DraftPolicy,
        *,
        chunk: int | None = None,
        rule: str = "auto",
        clock: Clock = perf_counter,
    ) -> None:
        assert chunk is None or chunk >= 1
        self._target, self._drafter, self._policy = target, drafter, policy
        self._rule, self._clock = rule, clock
        self._chunk = ChunkSize(min(chunk or target.caps.max_prefill_tokens, target.caps.max_prefill_tokens))
        self.waiting: FairQueue[ScheduledRequest] = FairQueue()
        self.running: list[ScheduledRequest] = []
        self.busy: BusyError | None = None  # why the request at the head of the queue could not start

    @property
    def idle(self) -> bool:
        return not len(self.waiting) and not self.running

    @property
    def sessions(self) -> int:
        """Requests that can run at once; each needs at least one row of a pass."""
        return min(self._target.caps.max_sessions, self._target.caps.max_batch_tokens)

    def add(self, scheduled: ScheduledRequest) -> None:
        """Queue a request. `start_request` checks that it fits the target."""
        self.waiting.add(scheduled.request.client, scheduled)

    def cancel(self, scheduled: ScheduledRequest) -> None:
        """End a request; its emitted tokens stay. Does nothing once it is over."""
        if scheduled.state == "waiting":
            self.waiting.remove(scheduled.request.client, scheduled)
            scheduled.state = "cancelled"
        if scheduled in self.running:
            self._end(scheduled, "cancelled")

    def admit(self) -> None:
        """Start waiting requests, client by client, while sessions are free."""
        while len(self.waiting) and len(self.running) < self.sessions:
            if not self._begin(self.waiting.peek()):
                return
            self.waiting.pop()

    def _begin(self, scheduled: ScheduledRequest) -> bool:
        """Start a request; return false if no session is free. Whenever Ctrl-C comes, `close` finds it."""
        self.running.append(scheduled)
        try:
            scheduled.active = start_request(
                self._target,
                self._drafter,
                scheduled.request,
                stop=scheduled.stop,
                grammar=scheduled.grammar,
                rule=self._rule,
            )
            scheduled.state = "running"
        except BusyError as error:
            self.busy = error.with_traceback(None)  # its frames would keep a dropped stream alive
            self.running.remove(scheduled)
            return False
        except Exception as error:
            scheduled.error, scheduled.state = error, "failed"
            self.running.remove(scheduled)
        return True

    def step(self) -> list[tuple[ScheduledRequest, Step]]:
        """Admit requests and run one pass; return its steps in order."""
        self.admit()
        active = {scheduled.active: scheduled for scheduled in self.running if scheduled.active is not None}
        if not active:
            return []
        decoding = sum(request.n_tokens > 0 for request in active)
        chunk, began = self._chunk.limit(decoding), self._clock()
        try:
            steps = advance_requests(
                self._target, self._drafter, self._policy, list(active), self._clock, chunk
            )
        except Exception as error:  # the whole pass failed, so all its requests have
            for scheduled in list(self.running):
                self._end(scheduled, "failed", error)
            return []
        read = sum(step.batch_tokens for _, step in steps if not step.tokens)
        self._chunk.update(decoding, read, self._clock() - began)
        for request, scheduled in active.items():
            if request.is_over:
                self._end(scheduled, "failed" if request.error else "done", request.error)
        return [(active[request], step) for request, step in steps]

    def _end(self, scheduled: ScheduledRequest, state: State, error: Exception | None = None) -> None:
        try:
            if scheduled.active is not None:
                scheduled.active.close()
        except Exception:
            self.running.remove(scheduled)
            raise
        scheduled.state, scheduled.error = state, error
        self.running.remove(scheduled)

    def close(self) -> None:
        """Cancel all requests."""
        for scheduled in [*self.waiting, *self.running]:
            self.cancel(scheduled)
