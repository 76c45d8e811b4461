"""Requests that come and go: the loop over a list that changes between passes, with a queue before it.

A request joins when a session is free, reads its prompt in chunks beside those that decode already, and
leaves when it has ended, failed or been cancelled; what happens to one is nothing to the others. Each gets
the text that it would get alone. The tokens that a pass reads of prompts are at most one chunk, shared evenly
by all that read; beside requests that decode they are fewer, so that a long prompt does not stall those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from paceline.core.chunks import ChunkSize
from paceline.core.decode import Clock, advance
from paceline.core.errors import BusyError
from paceline.core.policy import Policy
from paceline.core.ports import Drafter, Target
from paceline.core.record import Step
from paceline.core.request import Request, check, start
from paceline.core.typed import refusal

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(eq=False)
class Job:
    """One request from its arrival on. request: once it runs. error: what ended it, where it failed."""

    prompt: Sequence[int]
    settings: dict[str, Any]
    request: Request | None = None
    error: Exception | None = None
    state: State = "waiting"


class Scheduler:
    """Owns its jobs, and closes their requests. chunk: the most tokens of prompts in one pass, of the target
    or of a draft (by default what the target thinks best). Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        policy: Policy,
        *,
        chunk: int | None = None,
        clock: Clock = perf_counter,
    ) -> None:
        if chunk is not None and chunk < 1:
            raise refusal("chunk", chunk, "at least 1")
        self._target, self._drafter, self._policy, self._clock = target, drafter, policy, clock
        self._chunk = ChunkSize(min(chunk or target.caps.chunk, target.caps.chunk))
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def add(self, prompt: Sequence[int], *, max_tokens: int, **settings: Any) -> Job:
        """Queue a request; settings: what `start` takes. Raises UsageError for what cannot be decoded."""
        ends_itself = settings.get("grammar") is not None and bool(settings.get("ignore_eos"))
        check(self._target, prompt, max_tokens, ends_itself=ends_itself)
        job = Job(prompt, {**settings, "max_tokens": max_tokens})
        self.waiting.append(job)
        return job

    def cancel(self, job: Job) -> None:
        """What it has emitted stays. Nothing happens to one that is over."""
        if job.state == "waiting":
            self.waiting.remove(job)
            job.state = "cancelled"
        elif job.state == "running":
            self._end(job, "cancelled")

    def step(self) -> list[tuple[Job, Step]]:
        """One pass of all that run, those that are new among them; the steps of a job come in order."""
        self._admit()
        requests = {job.request: job for job in self.running if job.request is not None}
        if not requests:
            return []
        decoding = sum(request.n_tokens > 0 for request in requests)
        chunk, began = self._chunk.limit(decoding), self._clock()
        try:
            steps = advance(self._target, self._drafter, self._policy, list(requests), self._clock, chunk)
        except Exception as error:  # the pass itself: nobody knows whose fault it was
            for job in list(self.running):
                self._end(job, "failed", error)
            return []
        read = sum(step.rows for _, step in steps if not step.tokens)
        self._chunk.update(decoding, read, self._clock() - began)
        for request, job in requests.items():
            if request.is_over:
                self._end(job, "failed" if request.error else "done", request.error)
        return [(requests[request], step) for request, step in steps]

    def _admit(self) -> None:
        """First come, first served, as far as there are sessions, and a row for each."""
        while self.waiting and len(self.running) < min(self._target.caps.sessions, self._target.caps.rows):
            job = self.waiting[0]
            try:
                job.request = start(self._target, self._drafter, job.prompt, **job.settings)
            except BusyError:  # others than ours have them
                return
            except Exception as error:
                job.error, job.state = error, "failed"
            else:
                job.state = "running"
                self.running.append(job)
            self.waiting.popleft()

    def _end(self, job: Job, state: State, error: Exception | None = None) -> None:
        job.state, job.error = state, error
        self.running.remove(job)
        assert job.request is not None  # it was running
        job.request.close()

    def close(self) -> None:
        """Cancel all."""
        for job in [*self.waiting, *self.running]:
            self.cancel(job)
