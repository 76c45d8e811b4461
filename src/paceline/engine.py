"""The engine: one target, its drafter and the policy behind one lock.

`run_inline` and `run_batch` decode in the caller's thread, the server's `ServingEngine` in its own thread.
All use the same scheduler and the same loop.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from paceline.request_handle import Deliver, Generation, RequestHandle, StepOutput
from paceline.speculative.errors import BusyError
from paceline.speculative.interfaces import Drafter, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.interface import DraftPolicy
from paceline.speculative.request import MAX_FUSED_PREFILL, GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest, Scheduler
from paceline.system.forks import ForkGuard
from paceline.system.locks import FairLock
from paceline.text.grammar import TextGrammar

if TYPE_CHECKING:
    from paceline.storage.remembered import AnswerHistory

# Between two tries of a thread to get a session: polled, since Ctrl-C can leave a Condition locked.
SESSION_POLL_SECONDS = 0.005

OnPrefill = Callable[[int, int], object]


class InferenceEngine:
    """A target, its drafter and the policy, which one thread at a time uses. The caller closes them.

    rule: how sampled drafts are verified (verify.py).
    remembered: the file of answers for later drafts.
    detokenize: outputs have text if the target has a tokenizer."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        policy: DraftPolicy,
        *,
        rule: str = "auto",
        remembered: AnswerHistory | None = None,
        clock: Clock = perf_counter,
        detokenize: bool = True,
    ) -> None:
        self.target, self.drafter, self.policy = target, drafter, policy
        self.process = ForkGuard()
        self.clock = clock
        self._rule, self._remembered = rule, remembered
        self._text: Any = getattr(target, "text", None) if detokenize else None
        self._lock, self._arrivals = FairLock(), threading.Lock()
        self._later: deque[Callable[[], None]] = deque()
        self._holders = WeakKeyDictionary[BatchRun, int]()  # runs that have sessions, and their threads

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Take the engine's lock, in order of arrival. Raises UsageError in a forked process."""
        self.process.require()
        with self._lock.acquire():
            while self._later:
                self._later.popleft()()
            yield

    def run_later(self, call: Callable[[], None]) -> None:
        """Call the function when any thread takes the lock next, for finalizers, which run at any moment."""
        self._later.append(call)

    def scheduler(self, chunk: int | None = None) -> Scheduler:
        return Scheduler(
            self.target, self.drafter, self.policy, chunk=chunk, rule=self._rule, clock=self.clock
        )

    def handle(
        self, request: GenerationRequest, deliver: Deliver | None = None, clock: Clock | None = None
    ) -> RequestHandle:
        piece = None if self._text is None else self._text.piece
        return RequestHandle(request, piece, clock or self.clock, deliver)

    def run_inline(self, request: GenerationRequest, on_prefill: OnPrefill | None = None) -> Stream:
        """Decode in the thread that iterates. Waits while other threads have all sessions.

        Raises UsageError for a request that does not fit, and BusyError if there is no session for a further
        stream of this thread."""
        return Stream(self, request, on_prefill)

    def run_batch(self) -> BatchRun:
        """Decode several requests in the same passes, in the caller's thread."""
        return BatchRun(self)

    def compile_grammar(self, request: GenerationRequest) -> TextGrammar | None:
        """Compile the request's grammar. Raises UsageError if this model cannot use it."""
        if request.grammar is None:
            return None
        target: Any = self.target  # has a tokenizer
        return TextGrammar(target.token_trie.compile(request.grammar))

    def remember(self, handle: RequestHandle) -> None:
        """Keep a complete answer for later drafts."""
        if self._remembered is not None and handle.request.remember and handle.request.n_draft:
            self._remembered.add(handle.tokens)

    def acquire_session(self, run: BatchRun, begin: Callable[[], bool]) -> None:
        """Call `begin` until it returns true, which means that the run has a session.

        Raises BusyError if this thread has a session already, since it might wait for itself, or if no run of
        this engine has the sessions."""
        with self.exclusive():
            if threading.get_ident() in self._holders.values():
                if not begin():
                    raise run.busy
                self.register(run)
                return
        with self._arrivals:  # in order of arrival
            while True:
                with self.exclusive():
                    if begin():
                        self.register(run)
                        return
                    if not self._holders:  # opened directly from the target
                        raise run.busy
                sleep(SESSION_POLL_SECONDS)

    def register(self, run: BatchRun) -> None:
        """Note which thread has the run's sessions. The caller has the lock."""
        if run.scheduler.running:
            self._holders.setdefault(run, threading.get_ident())
        else:
            self._holders.pop(run, None)


class BatchRun:
    """Requests that are decoded together in one thread: add them, and `step` until `is_over`.

    In a `with` statement, or by `close`, the sessions are freed before the end."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine, self.scheduler = engine, engine.scheduler()
        self._handles: dict[ScheduledRequest, RequestHandle] = {}  # of requests that have not ended

    def __enter__(self) -> BatchRun:
        return self

    def __exit__(self, *_: object) -> None:
        with self._engine.exclusive():
            self.close()

    def add(self, request: GenerationRequest) -> RequestHandle:
        """Queue a request. Raises UsageError for an unusable grammar; other errors are in its `finish`."""
        handle = self._engine.handle(request)
        handle.scheduled.grammar = self._engine.compile_grammar(request)
        self.scheduler.add(handle.scheduled)
        self._handles[handle.scheduled] = handle
        return handle

    @property
    def is_over(self) -> bool:
        return self.scheduler.idle

    @property
    def busy(self) -> BusyError:
        """The error of a run that gets no session."""
        return self.scheduler.busy or BusyError("all sessions of this model are in use")

    def begin(self) -> None:
        """Get a session for the first request that waits; see `InferenceEngine.acquire_session`."""
        began = self._engine.clock()
        first = self.scheduler.waiting.peek()

        def admitted() -> bool:
            self.scheduler.admit()
            return first.state != "waiting"

        self._engine.acquire_session(self, admitted)
        handle = self._handles[first]
        handle.prompt_seconds += self._engine.clock() - began
        if first.error is not None:
            handle.finish_request(first.error)

    def step(self) -> list[tuple[RequestHandle, StepOutput]]:
        """Run one pass. A request that fails has its error in its handle's `finish`."""
        if not self.scheduler.running:
            self.begin()
        with self._engine.exclusive():
            return self.step_exclusive()

    def step_exclusive(self) -> list[tuple[RequestHandle, StepOutput]]:
        engine, scheduler = self._engine, self.scheduler
        began = engine.clock()
        steps = scheduler.step()
        seconds = engine.clock() - began
        out = list[tuple[RequestHandle, StepOutput]]()
        for scheduled, step in steps:
            handle = self._handles[scheduled]
            handle.started = handle.started or began
            # The time of a single request includes the scheduler's.
            out.append((handle, handle.add_step(step, seconds if len(steps) == 1 else step.times.total)))
        for scheduled in [scheduled for scheduled in self._handles if scheduled.is_over]:
            handle = self._handles.pop(scheduled)
            if not handle.is_over:
                handle.finish_request(scheduled.error)
            engine.remember(handle)
        engine.register(self)
        return out

    def close(self) -> None:
        """End all requests. The caller has the lock. After Ctrl-C in between, the next call does the rest."""
        self.scheduler.close()
        for handle in self._handles.values():
            if not handle.is_over:
                handle.finish_early()
                self._engine.remember(handle)
        self._engine.register(self)


class Stream(Iterator[StepOutput]):
    """Outputs of one request, one a step; `result()` returns the answer so far at any time.

    Several threads may iterate over one stream. `close`, or a `with` statement, frees the session before the
    end. A stream that is dropped, as by `break`, frees it when the model is used next.

    on_prefill: called before, between and after the passes that prefill a long prompt, with the tokens so far
    and in all. An exception that it raises ends the stream."""

    def __init__(
        self, engine: InferenceEngine, request: GenerationRequest, on_prefill: OnPrefill | None
    ) -> None:
        self._engine, self._on_prefill = engine, on_prefill
        self._run = engine.run_batch()
        self.handle = self._run.add(request)
        self._open = True  # from here on `_close` frees the session
        self._run.begin()
        if (error := self.handle.scheduled.error) is not None:
            raise error

    def __next__(self) -> StepOutput:
        with self._engine.exclusive():
            if not self._open:
                raise StopIteration
            try:
                self._prefill()
                output = self._step()
            except BaseException:
                self._close()
                raise
            if self.handle.is_over:
                self._open = False
            return output

    def _prefill(self) -> None:
        """Prefill a long prompt, except for the tokens that share the first draft's pass."""
        active = self.handle.scheduled.active
        assert active is not None
        if (total := active.session.pending_tokens) <= MAX_FUSED_PREFILL:
            return
        while True:
            if self._on_prefill is not None:
                self._on_prefill(total - active.session.pending_tokens, total)
            if active.session.pending_tokens <= MAX_FUSED_PREFILL:
                return
            self._step()

    def _step(self) -> StepOutput:
        steps = self._run.step_exclusive()
        if (error := self.handle.scheduled.error) is not None:
            raise error
        return steps[0][1]

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self._engine.run_later(self._close)

    def close(self) -> None:
        """Free the session; the text so far stays. The end of the answer frees it too."""
        if self._open and self._engine.process.is_current:
            with self._engine.exclusive():
                self._close()

    def _close(self) -> None:
        if self._open:
            self._run.close()
            self._open = False

    def result(self) -> Generation:
        with self._engine.exclusive():
            return self.handle.result(self._engine.policy.summary)
