"""The engine: one target, its drafter and the policy behind one lock.

`InferenceEngine.step` is the driver of the scheduler: `Stream` and `BatchRun` call it in the caller's thread,
the server's `ServingEngine` in its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from time import perf_counter
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
from paceline.text.grammar_pool import GrammarPool

if TYPE_CHECKING:
    from paceline.storage.remembered import AnswerHistory

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
        tokenized: Any = target  # has a tokenizer if a request has text or a grammar
        self._text = getattr(tokenized, "text", None) if detokenize else None
        self.grammars = GrammarPool(lambda: tokenized.token_trie)
        self._lock = FairLock()  # threads with streams take turns, step by step
        self._later: deque[Callable[[], None]] = deque()
        self._holders = WeakKeyDictionary[BatchRun, int]()  # runs that have sessions, and their threads
        # Of the threads that wait for a session, one has `_arrivals` and gets `_released`. Ctrl-C leaves no
        # lock of a SimpleQueue locked, unlike a Condition's, and finalizers may put into it.
        self._arrivals, self._released = threading.Lock(), SimpleQueue[None]()

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
        self.wake()

    def scheduler(self, chunk: int | None = None) -> Scheduler:
        return Scheduler(
            self.target, self.drafter, self.policy, chunk=chunk, rule=self._rule, clock=self.clock
        )

    def handle(
        self, request: GenerationRequest, deliver: Deliver | None = None, clock: Clock | None = None
    ) -> RequestHandle:
        piece = None if self._text is None else self._text.piece
        return RequestHandle(request, piece, clock or self.clock, deliver)

    def run_batch(self) -> BatchRun:
        """Decode several requests in the same passes, in the caller's thread."""
        return BatchRun(self)

    def step(
        self, scheduler: Scheduler, handles: Mapping[ScheduledRequest, RequestHandle]
    ) -> list[tuple[RequestHandle, StepOutput]]:
        """Start requests, run one pass, and return its outputs. The caller has the lock.

        handles: the scheduler's requests that have not ended. One whose output has a `finish` has ended."""
        began = self.clock()
        steps = scheduler.step()
        seconds = (self.clock() - began) / max(1, len(steps))  # an even share of the pass
        outputs = [
            (handle, handle.add_step(step, began, seconds))
            for handle, step in [(handles[scheduled], step) for scheduled, step in steps]
        ]
        for scheduled, handle in list(handles.items()):
            if scheduled.is_over and not handle.is_over:  # it failed
                outputs.append((handle, StepOutput(finish=handle.finish_request(scheduled.error))))
        for handle, output in outputs:
            if output.finish is not None:
                self.wake()
                if output.finish.error is None:
                    self.remember(handle)
        return outputs

    def remember(self, handle: RequestHandle) -> None:
        """Keep an answer for later drafts."""
        if self._remembered is not None and handle.request.remember and handle.request.n_draft:
            self._remembered.add(handle.tokens)

    def acquire_session(self, run: BatchRun, begin: Callable[[], bool]) -> None:
        """Call `begin` until it returns true, which means that the run has a session.

        Raises BusyError if this thread has a session already, since it might wait for itself, or if no run of
        this engine has the sessions."""
        with self.exclusive():
            holds = threading.get_ident() in self._holders.values()
        with nullcontext() if holds else self._arrivals:  # in order of arrival
            while True:
                with self.exclusive():
                    if begin():
                        self.register(run)
                        return
                    if holds or not self._holders:  # without holders: opened directly from the target
                        raise run.busy
                self._released.get()

    def wake(self) -> None:
        """Let the thread that waits for a session try again."""
        if self._released.empty():
            self._released.put(None)

    def register(self, run: BatchRun) -> None:
        """Note which thread has the run's sessions. The caller has the lock."""
        if run.scheduler.running:
            self._holders.setdefault(run, threading.get_ident())
        else:
            self._holders.pop(run, None)


class BatchRun:
    """Requests that are decoded together in one thread: add them, and `step` until `is_over`.

    In a `with` statement, or by `close`, the sessions are freed before the end. A run that is dropped frees
    them when the model is used next."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine, self.scheduler = engine, engine.scheduler()
        self.handles: dict[ScheduledRequest, RequestHandle] = {}  # of requests that have not ended

    def __enter__(self) -> BatchRun:
        return self

    def __exit__(self, *_: object) -> None:
        with self._engine.exclusive():
            self.close()

    def __del__(self) -> None:
        if getattr(self, "handles", None):  # Ctrl-C may come before it is set
            self._engine.run_later(self.close)

    def add(self, request: GenerationRequest) -> RequestHandle:
        """Queue a request. Raises UsageError for an unusable grammar; other errors are in its `finish`."""
        handle = self._engine.handle(request)
        if handle.grammar is not None:
            handle.scheduled.grammar = TextGrammar(self._engine.grammars.compile(handle.grammar))
        self.handles[handle.scheduled] = handle
        self.scheduler.add(handle.scheduled)
        return handle

    @property
    def is_over(self) -> bool:
        return not self.handles

    @property
    def busy(self) -> BusyError:
        """The error of a run that gets no session."""
        return self.scheduler.busy or BusyError("all sessions of this model are in use")

    def begin(self) -> None:
        """Get a session for the first request that waits; see `InferenceEngine.acquire_session`."""
        clock, first = self._engine.clock, self.scheduler.waiting.peek()
        handle = self.handles[first]

        def admitted() -> bool:
            began = clock()
            self.scheduler.admit()
            handle.prompt_seconds += clock() - began
            return first.state != "waiting"

        self._engine.acquire_session(self, admitted)
        if first.error is not None:
            self.handles.pop(first).finish_request(first.error)

    def step(self) -> list[tuple[RequestHandle, StepOutput]]:
        """Run one pass. A request that fails has its error in its handle's `finish`."""
        if not self.scheduler.running and len(self.scheduler.waiting):
            self.begin()
        with self._engine.exclusive():
            return self.step_exclusive()

    def step_exclusive(self) -> list[tuple[RequestHandle, StepOutput]]:
        outputs = self._engine.step(self.scheduler, self.handles)
        for handle, output in outputs:
            if output.finish is not None:
                del self.handles[handle.scheduled]
        self._engine.register(self)
        return outputs

    def close(self) -> None:
        """End all requests. The caller has the lock. After Ctrl-C in between, the next call does the rest."""
        try:
            self.scheduler.close()
            for handle in self.handles.values():
                if not handle.is_over:
                    handle.finish_early()
                    self._engine.remember(handle)
        finally:
            self._engine.register(self)
            self._engine.wake()
        self.handles.clear()


class Stream(Iterator[StepOutput]):
    """Outputs of one request, one a step; `result()` returns the answer so far at any time.
    It decodes in the thread that iterates, and waits while other threads have all sessions.

    Several threads may iterate over one stream. `close`, or a `with` statement, frees the session before the
    end. A stream that is dropped, as by `break`, frees it when the model is used next.

    on_prefill: see `LLM.stream`.
    Raises UsageError for a request that does not fit, and BusyError if there is no session for a further
    stream of this thread."""

    def __init__(
        self, engine: InferenceEngine, request: GenerationRequest, on_prefill: OnPrefill | None = None
    ) -> None:
        self._engine, self._on_prefill = engine, on_prefill
        self._run = engine.run_batch()
        self.handle = self._run.add(request)
        self._run.begin()
        if (error := self.handle.scheduled.error) is not None:
            raise error

    def __next__(self) -> StepOutput:
        with self._engine.exclusive():
            if self._run.is_over:
                raise StopIteration
            try:
                self._prefill()
                return self._step()
            except BaseException:
                self._run.close()
                raise

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
        [(_, output)] = self._run.step_exclusive()
        if output.finish is not None and output.finish.error is not None:
            raise output.finish.error
        return output

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the session; the text so far stays. The end of the answer frees it too."""
        if not self._run.is_over and self._engine.process.is_current:
            with self._engine.exclusive():
                self._run.close()

    def result(self) -> Generation:
        with self._engine.exclusive():
            return self.handle.result(self._engine.policy.summary)
