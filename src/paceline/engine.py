"""The engine: one target, what drafts for it and the rule that decides how much, behind one lock.

`run_inline` decodes in the caller's own thread, an `EngineWorker` (engine_worker.py) in one of its own. Both
go through the same scheduler and the same loop.
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

# Between two tries of a thread to get a session. (Ctrl-C can leave a Condition locked.)
LOCK_TIMEOUT_SECONDS = 0.005

OnPrefill = Callable[[int, int], object]


class InferenceEngine:
    """Whoever has its turn is the only one to touch the target, the drafter and the policy. It does not close
    them.

    rule: how sampled drafts are verified (verify.py).
    remembered: where answers are kept for later drafts.
    detokenize: whether outputs have text, where the target has a tokenizer."""

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
        self._holders = WeakKeyDictionary[BatchRun, int]()  # of sessions, and their threads

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Threads get it in the order in which they asked. Raises UsageError in a forked process."""
        self.process.require()
        with self._lock.acquire():
            while self._later:
                self._later.popleft()()
            yield

    def run_later(self, call: Callable[[], None]) -> None:
        """Call it when the next turn begins, whosever that is: for objects that are dropped, which happens at
        any moment and in any thread."""
        self._later.append(call)

    def scheduler(self, chunk: int | None = None) -> Scheduler:
        return Scheduler(
            self.target, self.drafter, self.policy, chunk=chunk, rule=self._rule, clock=self.clock
        )

    def handle(
        self,
        request: GenerationRequest,
        deliver: Deliver | None = None,
        clock: Clock | None = None,
    ) -> RequestHandle:
        piece = None if self._text is None else self._text.piece
        return RequestHandle(request, piece, clock or self.clock, deliver)

    def run_inline(self, request: GenerationRequest, on_prefill: OnPrefill | None = None) -> Stream:
        """Decode in the thread that takes the outputs. While other threads have all sessions it waits for
        one. Raises UsageError for a request that does not fit, BusyError where this thread itself has a
        stream open and there is no session for another."""
        return Stream(self, request, on_prefill)

    def run_batch(self) -> BatchRun:
        """Several requests in the caller's thread, in the same passes."""
        return BatchRun(self)

    def compile_grammar(self, request: GenerationRequest) -> TextGrammar | None:
        """The request's grammar. Raises UsageError for one that this model cannot use."""
        if request.grammar is None:
            return None
        target: Any = self.target  # one that has text
        return TextGrammar(target.trie.compiled(request.grammar))

    def remember(self, handle: RequestHandle) -> None:
        """Keep an answer that has ended for later drafts."""
        if self._remembered is not None and handle.request.remember and handle.request.n_draft:
            self._remembered.add(handle.tokens)

    def acquire_session(self, run: BatchRun, begin: Callable[[], bool]) -> None:
        """Call `begin` until it is true: until the run has a session. While threads beside this one have all
        sessions, it waits, but for a thread that has one already: it might wait for itself. BusyError is
        raised then, and where others than runs of this engine have them."""
        with self.exclusive():
            if threading.get_ident() in self._holders.values():
                if not begin():
                    raise run.busy
                self.register(run)
                return
        with self._arrivals:  # the others wait behind the first
            while True:
                with self.exclusive():
                    if begin():
                        self.register(run)
                        return
                    if not self._holders:  # somebody has them who is no run of this engine
                        raise run.busy
                sleep(LOCK_TIMEOUT_SECONDS)

    def register(self, run: BatchRun) -> None:
        """In its turn: note which thread has the run's sessions."""
        if run.scheduler.running:
            self._holders.setdefault(run, threading.get_ident())
        else:
            self._holders.pop(run, None)


class BatchRun:
    """Requests that are decoded together in one thread: add them, `step` until it is over, and close it."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine, self.scheduler = engine, engine.scheduler()
        self._handles: dict[ScheduledRequest, RequestHandle] = {}  # that are not over

    def add(self, request: GenerationRequest) -> RequestHandle:
        """Raises UsageError for a request that does not fit."""
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
        """Why it has no session."""
        return self.scheduler.busy or BusyError("all sessions of this model are in use")

    def begin(self) -> None:
        """Get a session for the first request that waits; see `InferenceEngine.acquire`."""
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
        """One pass. A request that fails has its error in its handle's `finish`."""
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
            # A single request's time is all of it, what the loop does not count too.
            out.append((handle, handle.add_step(step, seconds if len(steps) == 1 else step.times.total)))
        for scheduled in [scheduled for scheduled in self._handles if scheduled.is_over]:
            handle = self._handles.pop(scheduled)
            if not handle.is_over:
                handle.finish_request(scheduled.error)
            engine.remember(handle)
        engine.register(self)
        return out

    def close(self) -> None:
        """In the engine's turn. Where Ctrl-C comes in between, the next call does the rest."""
        self.scheduler.close()
        for handle in self._handles.values():
            if not handle.is_over:
                handle.detach()
                self._engine.remember(handle)
        self._engine.register(self)


class Stream(Iterator[StepOutput]):
    """Outputs of one request as they are decoded, one a step; `result()` at any point tells what there is so
    far. Threads may take outputs of one stream in turns.

    close, or a `with` statement, gives the session back before the end. A stream that is dropped, as by
    `break` in a loop over it, gives it back when the model is used next.

    on_prefill: called before, between and after the passes that read a long prompt: of how many tokens, and
    of how many in all. What it raises ends the stream."""

    def __init__(
        self, engine: InferenceEngine, request: GenerationRequest, on_prefill: OnPrefill | None
    ) -> None:
        self._engine, self._on_prefill = engine, on_prefill
        self._run = engine.run_batch()
        self.handle = self._run.add(request)
        self._open = True  # from here on there may be something to close
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
        """Read a long prompt, but for what is computed with the first draft."""
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
        """Give the session back; the text so far stays. Called by itself at the end."""
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
