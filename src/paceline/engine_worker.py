"""The worker of an engine: one thread that decodes for many clients.

Other threads send it commands through a queue, and get outputs by callbacks. It runs the commands between two
passes, so that requests join and leave at any pass.
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

IDLE_SECONDS = 1.0  # between two checks of timeouts while nothing runs

log = logging.getLogger("paceline.engine")


class EngineWorker:
    """The thread, and the requests that were submitted to it. chunk: the most prompt tokens in one pass.

    Subclasses may override `on_step`, `on_pass` and `on_finish`, which the thread calls."""

    def __init__(self, engine: InferenceEngine, chunk: int | None = None, clock: Clock = monotonic) -> None:
        self._engine, self._clock = engine, clock
        self._scheduler = engine.scheduler(chunk)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        target: Any = engine.target  # has a tokenizer if a request has a grammar
        self._grammars = GrammarPool(lambda: target.token_trie)
        self._handles: dict[ScheduledRequest, RequestHandle] = {}  # of requests that have not ended
        self._lock = threading.Lock()  # guards `_closing`: nothing is submitted after it is set
        self._closing, self._stopping = False, False
        self.failure: BaseException | None = None
        self.pass_started = self._clock()
        self._logged: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)
        self._thread.start()

    def on_step(self, step: Step) -> None: ...

    def on_pass(self, seconds: float, n_tokens: int, n_running: int) -> None: ...

    def on_finish(self, handle: RequestHandle, finish: Finish) -> None: ...

    # Any thread may call what follows.

    @property
    def sessions(self) -> int:
        return self._scheduler.sessions

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def is_idle(self) -> bool:
        """True if no request waits or runs."""
        return self._scheduler.idle and not self._handles

    @property
    def has_failed(self) -> bool:
        return self.failure is not None

    @property
    def problem(self) -> str:
        """The reason why no request can be submitted; empty without one."""
        if self.failure is not None:
            return f"the server has failed ({type(self.failure).__name__}; its log says why): start it again"
        return "the server is going down" if self._closing else ""

    def handle(self, request: GenerationRequest, deliver: Deliver) -> RequestHandle:
        """Make a handle. deliver: called with every output, in the worker's thread; it must not block."""
        return self._engine.handle(request, deliver, self._clock)

    def submit_handles(self, handles: Sequence[RequestHandle]) -> None:
        """Queue all requests, or none. Raises ClosingError. Any other error is in a request's `finish`."""
        with self._lock:
            if self.problem:
                raise ClosingError(self.problem)
            groups: dict[Any, list[RequestHandle]] = {}
            for handle in handles:
                groups.setdefault(handle.request.grammar, []).append(handle)
            for group in groups.values():
                self._commands.put(partial(self._accept, group))

    def cancel(self, handle: RequestHandle) -> None:
        """End a request without any further output. It may have ended already."""
        self._commands.put(lambda: self._cancel(handle, None))

    def announce_shutdown(self) -> None:
        """Refuse new requests from now on. It takes no lock, so signal handlers may call it."""
        self._closing = True

    def abort(self, handles: Iterable[RequestHandle]) -> None:
        """Shut down, and end these requests with ClosingError at once: the pass under way may take long."""
        self.announce_shutdown()
        self._commands.put(self._stop)
        for handle in handles:
            handle.deliver(StepOutput(finish=handle.finish_request(ClosingError(self.problem))))

    def close(self, patience: float | None = None) -> bool:
        """End all requests and the thread. Return false if the pass under way, which uses the model, has not
        ended within `patience` seconds; None: wait for its end."""
        self.announce_shutdown()
        self._commands.put(self._stop)
        self._thread.join(patience)
        return not self._thread.is_alive()

    # The worker's thread calls what follows.

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._drain_commands()
                self.pass_started = self._clock()
                self._expire()
                self._run_pass()
        except BaseException as error:  # a bug: clients must not wait for ever
            log.exception("the engine has failed")
            self.failure = error
        finally:
            self._reject_pending()
            self._grammars.close()
            try:
                self._scheduler.close()
            except Exception:  # a backend that has failed may fail here, too
                log.exception("sessions cannot be closed")

    def _stop(self) -> None:
        self._stopping = True

    def _drain_commands(self) -> None:
        """Run the commands in the queue; wait for a command if no request runs."""
        with suppress(queue.Empty):
            idle = self._scheduler.idle
            command = self._commands.get(timeout=IDLE_SECONDS) if idle else self._commands.get_nowait()
            while True:
                command()
                command = self._commands.get_nowait()

    def _reject_pending(self) -> None:
        closing: Exception = ClosingError(self.problem or "the server is going down")
        with self._lock:
            self._closing = True
        while not self._commands.empty():
            with suppress(Exception):  # whatever failed, all requests below get the error
                self._commands.get_nowait()()
        for handle in list(self._handles.values()):
            self._fail(handle, closing)

    def _accept(self, handles: Sequence[RequestHandle]) -> None:
        """Queue requests of one client with the same grammar, which may have to be compiled first."""
        for handle in handles:
            self._handles[handle.scheduled] = handle
        grammar, target = handles[0].request.grammar, self._engine.target
        compiled: CompiledGrammar | Exception | None = None
        if grammar is not None:
            try:
                compiled = target.token_trie.get_cached(grammar)  # type: ignore[attr-defined]  # it has a tokenizer
            except UsageError as error:  # the vocabulary has no end of text
                compiled = error
            if compiled is None:
                job = self._grammars.submit(
                    grammar,  # type: ignore[arg-type]  # requests for text have a grammar's source
                    handles[0].request.client,
                    lambda outcome: self._commands.put(partial(self._enqueue, handles, outcome)),
                )
                for handle in handles:
                    handle.compiling = job
                return
        self._enqueue(handles, compiled)

    def _enqueue(self, handles: Sequence[RequestHandle], grammar: CompiledGrammar | Exception | None) -> None:
        """Add the requests to the scheduler's queue, with their compiled grammar."""
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
            self.on_step(step)
            handle = self._handles[scheduled]
            handle.started = handle.started or began
            output = handle.add_step(step, step.times.total)
            if output.finish is not None:
                self._finish(handle, output.finish)
            if step.tokens:
                handle.deliver(output)
        for scheduled in [scheduled for scheduled in self._handles if scheduled.is_over]:
            self._fail(self._handles[scheduled], scheduled.error or ClosingError("the answer was broken off"))
        self.on_pass(self._clock() - began, n, self.running)

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
        """End a request with an error. Outputs that were delivered stay valid."""
        if not isinstance(error, UsageError | ClosingError | TooSlowError) and error is not self._logged:
            self._logged = error  # the same for all requests of a pass that failed
            log.error("the model has failed at a request", exc_info=error)
        finish = handle.finish_request(error)
        self._finish(handle, finish)
        handle.deliver(StepOutput(finish=finish))

    def _finish(self, handle: RequestHandle, finish: Finish) -> None:
        del self._handles[handle.scheduled]
        self.on_finish(handle, finish)
        if finish.reason is not None:
            self._engine.remember(handle)
