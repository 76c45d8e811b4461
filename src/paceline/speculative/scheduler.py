"""Continuous batching: the loop over a list of requests that changes between passes, with a queue before it.

A request joins when a session is free, reads its prompt in chunks beside those that decode already, and
leaves when it has ended, failed or been cancelled. Each gets the text that it would get alone.
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
from paceline.speculative.validation import require

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(eq=False)
class ScheduledRequest:
    """A request from its arrival on.

    stop, grammar: see `start`.
    active: the request being decoded; None while it waits.
    error: what ended it, where it failed."""

    request: GenerationRequest
    stop: Callable[[int], bool] | None = None
    grammar: Grammar | None = None
    active: ActiveRequest | None = None
    error: Exception | None = None
    state: State = "waiting"

    @property
    def is_over(self) -> bool:
        return self.state not in ("waiting", "running")


class Scheduler:
    """Owns its requests, and closes them. chunk: the most tokens of prompts in one pass, by default the
    target's. rule: how sampled drafts are verified. Not for several threads at once."""

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
        if chunk is not None and chunk < 1:
            raise require("chunk", chunk, "at least 1")
        self._target, self._drafter, self._policy = target, drafter, policy
        self._rule, self._clock = rule, clock
        self._chunk = ChunkSize(min(chunk or target.caps.max_prefill_tokens, target.caps.max_prefill_tokens))
        self.waiting: FairQueue[ScheduledRequest] = FairQueue()
        self.running: list[ScheduledRequest] = []
        self.busy: BusyError | None = None  # why the last request that waits could not begin

    @property
    def idle(self) -> bool:
        return not len(self.waiting) and not self.running

    @property
    def sessions(self) -> int:
        """Requests that can run at once: a row for each."""
        return min(self._target.caps.max_sessions, self._target.caps.max_batch_tokens)

    def add(self, scheduled: ScheduledRequest) -> None:
        """Queue a request. `start_request` checks that it fits the target."""
        self.waiting.add(scheduled.request.client, scheduled)

    def cancel(self, scheduled: ScheduledRequest) -> None:
        """What it has emitted stays. Nothing happens to one that is over."""
        if scheduled.state == "waiting":
            self.waiting.remove(scheduled.request.client, scheduled)
            scheduled.state = "cancelled"
        if scheduled in self.running:
            self._end(scheduled, "cancelled")

    def admit(self) -> None:
        """Start what waits, in turns of clients, as far as there are sessions."""
        while len(self.waiting) and len(self.running) < self.sessions:
            if not self._begin(self.waiting.peek()):
                return
            self.waiting.pop()

    def _begin(self, scheduled: ScheduledRequest) -> bool:
        """Open the session; false where others have them all. Wherever Ctrl-C comes, `close` finds it."""
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
            self.busy = error.with_traceback(None)  # whose frames would keep a dropped stream alive
            self.running.remove(scheduled)
            return False
        except Exception as error:
            scheduled.error, scheduled.state = error, "failed"
            self.running.remove(scheduled)
        return True

    def step(self) -> list[tuple[ScheduledRequest, Step]]:
        """One pass of all that run, those that are new among them; the steps of a request come in order."""
        self.admit()
        active = {one.active: one for one in self.running if one.active is not None}
        if not active:
            return []
        decoding = sum(request.n_tokens > 0 for request in active)
        chunk, began = self._chunk.limit(decoding), self._clock()
        try:
            steps = advance_requests(
                self._target, self._drafter, self._policy, list(active), self._clock, chunk
            )
        except Exception as error:  # the pass itself: nobody knows whose fault it was
            for one in list(self.running):
                self._end(one, "failed", error)
            return []
        read = sum(step.batch_tokens for _, step in steps if not step.tokens)
        self._chunk.update(decoding, read, self._clock() - began)
        for request, one in active.items():
            if request.is_over:
                self._end(one, "failed" if request.error else "done", request.error)
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
        """Cancel all."""
        for scheduled in [*self.waiting, *self.running]:
            self.cancel(scheduled)
