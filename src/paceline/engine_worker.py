"""The worker of an engine: one thread that decodes for many clients at once.

Others hand it commands through a queue, and are told through functions of their own; nothing else is shared.
Between two passes it looks what has come, and goes on: requests join and leave at any pass.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from paceline.request_handle import Deliver, Finish, RequestHandle, StepOutput
from paceline.speculative.errors import ClosingError, TooSlowError, UsageError
from paceline.speculative.loop import Clock
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest
from paceline.speculative.stats import Step
from paceline.text.grammar import CompiledGrammar, TextGrammar
from paceline.text.grammar_pool import GrammarPool

if TYPE_CHECKING:
    from paceline.engine import InferenceEngine

IDLE_SECONDS = 1.0  # between two looks at the clock, where nothing else happens

log = logging.getLogger("paceline.engine")


class EngineObserver:
    """Told what a worker does, in its thread. Every method does nothing until it is overridden."""

    def on_step(self, step: Step) -> None: ...

    def on_pass(self, seconds: float, n_tokens: int, n_running: int) -> None: ...

    def on_finish(self, handle: RequestHandle, finish: Finish) -> None: ...


class EngineWorker:
    """Owns the thread and the handles that were submitted. chunk: the most tokens of prompts in one pass."""

    def __init__(
        self,
        engine: InferenceEngine,
        observer: EngineObserver | None = None,
        chunk: int | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._engine, self._observer = engine, observer or EngineObserver()
        self._clock = clock
        self._scheduler = engine.scheduler(chunk)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        target: Any = engine.target  # one that has text, where a request has a grammar
        self._grammars = GrammarPool(lambda: target.trie)
        self._handles: dict[ScheduledRequest, RequestHandle] = {}  # that are not over
        self._lock = threading.Lock()  # of what follows: nothing is submitted once it is closing
        self._closing, self._stopping = False, False
        self.failure: BaseException | None = None
        self.pass_started = self._clock()
        self._logged: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)
        self._thread.start()

    # What other threads call.

    @property
    def sessions(self) -> int:
        return self._scheduler.sessions

    @property
    def n_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def idle(self) -> bool:
        return self._scheduler.idle and not self._handles

    @property
    def problem(self) -> str:
        """Why nothing can be submitted; empty where all is well."""
        if self.failure is not None:
            return f"the server has failed ({type(self.failure).__name__}; its log says why): start it again"
        return "the server is going down" if self._closing else ""

    def handle(self, request: GenerationRequest, deliver: Deliver) -> RequestHandle:
        """deliver: called with every output, in this worker's thread: it must not wait."""
        return self._engine.handle(request, deliver, self._clock)

    def submit(self, handles: Sequence[RequestHandle]) -> None:
        """Queue all of them, or none. Raises ClosingError. A request that cannot be decoded is told so by
        its `finish`."""
        with self._lock:
            if self.problem:
                raise ClosingError(self.problem)
            groups: dict[Any, list[RequestHandle]] = {}
            for handle in handles:
                groups.setdefault(handle.request.grammar, []).append(handle)
            for group in groups.values():
                self._commands.put(partial(self._accept, group))

    def cancel(self, handle: RequestHandle) -> None:
        """Decode nothing more of it, and tell its listener nothing. Harmless where it is over."""
        self._commands.put(lambda: self._cancel(handle, None))

    def announce_closing(self) -> None:
        """Take nothing more. (Of a signal handler too: it takes no lock.)"""
        self._closing = True

    def abort_all(self, handles: Iterable[RequestHandle]) -> None:
        """End all answers by an error, told at once: the pass under way may take long."""
        self.announce_closing()
        self._commands.put(self._stop)
        for handle in handles:
            handle.deliver(StepOutput(finish=handle.finish_request(ClosingError(self.problem))))

    def close(self, patience: float | None = None) -> bool:
        """Take nothing more. patience: seconds for the pass under way; None: until it ends. Returns whether
        it has: where not, the model is in use still."""
        self.announce_closing()
        self._commands.put(self._stop)
        self._thread.join(patience)
        return not self._thread.is_alive()

    # The thread.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._drain_commands()
                self.pass_started = self._clock()
                self._expire()
                self._run_pass()
        except BaseException as error:  # a bug: what waits must not wait for ever
            log.exception("the engine has failed")
            self.failure = error
        finally:
            self._reject_pending()
            self._grammars.close()
            try:
                self._scheduler.close()
            except Exception:  # a backend that has failed may do so here, too
                log.exception("sessions cannot be closed")

    def _stop(self) -> None:
        self._stopping = True

    def _drain_commands(self) -> None:
        """Run what has come; where there is nothing to do, wait for it."""
        with suppress(queue.Empty):
            idle = self._scheduler.idle
            command = self._commands.get(timeout=IDLE_SECONDS) if idle else self._commands.get_nowait()
            while True:
                command()
                command = self._commands.get_nowait()

    def _reject_pending(self) -> None:
        closing: Exception = ClosingError(self.problem or "the server is going down")
        with self._lock:  # nothing is submitted from here on
            self._closing = True
        while not self._commands.empty():
            self._commands.get_nowait()()
        for handle in list(self._handles.values()):
            self._fail(handle, closing)

    def _accept(self, handles: Sequence[RequestHandle]) -> None:
        """Requests of one client with the same grammar, which is compiled first where it has not been yet."""
        for handle in handles:
            self._handles[handle.scheduled] = handle
        grammar, target = handles[0].request.grammar, self._engine.target
        known: CompiledGrammar | Exception | None = None
        if grammar is not None:
            try:
                known = target.trie.cached(grammar)  # type: ignore[attr-defined]  # it has text
            except UsageError as error:  # it cannot end a text
                known = error
            if known is None:
                job = self._grammars.submit(
                    grammar,  # type: ignore[arg-type]  # those of requests for text
                    handles[0].request.client,
                    lambda outcome: self._commands.put(partial(self._enqueue, handles, outcome)),
                )
                for handle in handles:
                    handle.compiling = job
                return
        self._enqueue(handles, known)

    def _enqueue(self, handles: Sequence[RequestHandle], grammar: CompiledGrammar | Exception | None) -> None:
        """Join the queue, now that the grammar is there."""
        for handle in handles:
            handle.compiling = None
            if handle.is_over:
                continue
            try:
                if isinstance(grammar, Exception):
                    raise grammar
                handle.scheduled.grammar = None if grammar is None else TextGrammar(grammar)
                self._scheduler.add(handle.scheduled)
            except Exception as error:
                self._fail(handle, error)
            else:
                handle.queued.set_result(True)

    def _expire(self) -> None:
        now = self._clock()
        for handle in list(self._handles.values()):
            timeout = handle.request.timeout
            if timeout is not None and handle.arrived < now - timeout:
                message = f"the answer took longer than the {timeout:g} seconds allowed here"
                self._cancel(handle, TooSlowError(message))

    def _run_pass(self) -> None:
        if self._scheduler.idle:
            return
        began, n = self._clock(), 0
        with self._engine.exclusive():
            steps = self._scheduler.step()
        for scheduled, step in steps:
            n += len(step.tokens)
            self._observer.on_step(step)
            handle = self._handles[scheduled]
            handle.started = handle.started or began
            output = handle.add_step(step, step.times.total)
            if output.finish is not None:
                self._finish(handle, output.finish)
            if step.tokens:
                handle.deliver(output)
        for scheduled in [scheduled for scheduled in self._handles if scheduled.is_over]:
            self._fail(self._handles[scheduled], scheduled.error or ClosingError("the answer was broken off"))
        self._observer.on_pass(self._clock() - began, n, self.n_running)

    def _cancel(self, handle: RequestHandle, error: Exception | None) -> None:
        if handle.scheduled not in self._handles:
            return
        with self._engine.exclusive():
            self._scheduler.cancel(handle.scheduled)
        job = handle.compiling
        handle.compiling = None
        if job is not None and not any(one.compiling is job for one in self._handles.values()):
            self._grammars.cancel(job)
        if error is None:
            self._finish(handle, handle.finish_request())
        else:
            self._fail(handle, error)

    def _fail(self, handle: RequestHandle, error: Exception) -> None:
        """What was decoded so far stays told."""
        if not isinstance(error, UsageError | ClosingError | TooSlowError) and error is not self._logged:
            self._logged = error  # of a pass, for all that were in it
            log.error("the model has failed at a request", exc_info=error)
        finish = handle.finish_request(error)
        self._finish(handle, finish)
        handle.deliver(StepOutput(finish=finish))

    def _finish(self, handle: RequestHandle, finish: Finish) -> None:
        """It is over."""
        del self._handles[handle.scheduled]
        self._observer.on_finish(handle, finish)
        if finish.reason is not None:
            self._engine.remember(handle)
