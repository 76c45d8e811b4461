"""The server's engine: one thread that decodes for many clients, with limits and metrics.

Other threads send it commands through a queue, and get outputs by callbacks. It runs the commands between two
passes, so that requests join and leave at any pass."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar, cast

from paceline.api import LLM
from paceline.request_handle import Finish, RequestHandle, StepOutput
from paceline.server.live_stats import LiveStats
from paceline.server.metrics import Metrics
from paceline.server.settings import PREFILL_CHUNK_TOKENS, ServerLimits
from paceline.speculative.errors import BusyError, ClosingError, TooSlowError, UsageError
from paceline.speculative.printable import count
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest
from paceline.text.grammar import CompiledGrammar, TextGrammar

IDLE_SECONDS = 1.0  # between two checks of timeouts while nothing runs
BUSY_SECONDS = 0.02  # until a job looks for a session again
OVERDUE = "the request exceeded its timeout of {:g} seconds"
STALL_SECONDS = 120.0  # in one pass, after which the server reports that it is unhealthy

log = logging.getLogger("paceline.engine")
T = TypeVar("T")


class QueueFullError(UsageError):
    """More requests than the server takes now."""


class ServingEngine:
    """The engine of one server, and its thread: a context manager. The caller closes the model.
    chunk: the most prompt tokens in one pass."""

    def __init__(
        self, llm: LLM, limits: ServerLimits | None = None, *, chunk: int = PREFILL_CHUNK_TOKENS
    ) -> None:
        self.llm, self.limits = llm, limits or ServerLimits()
        self.metrics, self.live_stats = Metrics(), LiveStats(llm)
        self._engine, self._clock = llm.engine, llm.engine.clock
        self._scheduler = llm.engine.scheduler(chunk)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # Guards `_handles` and `_closing`: nothing is submitted after it is set.
        self._lock = threading.Lock()
        self._handles: dict[ScheduledRequest, RequestHandle] = {}  # of requests that have not ended
        self._jobs, self._n_jobs = ThreadPoolExecutor(1, "paceline-job"), 0
        self._closing, self._stopping = False, False
        self.failure: BaseException | None = None
        self.pass_started = self._clock()
        self._logged: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)
        self._thread.start()

    # Any thread may call what follows.

    @property
    def sessions(self) -> int:
        return self._scheduler.sessions

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return max(0, len(self._handles) - self.running)

    @property
    def problem(self) -> str:
        """The reason why no request can be submitted; empty without one."""
        if self.failure is not None:
            return f"the server has failed ({type(self.failure).__name__}; its log says why): start it again"
        return "the server is shutting down" if self._closing else ""

    @property
    def pass_seconds(self) -> float:
        """Seconds since the pass under way began; 0 if no request waits or runs."""
        return max(0.0, self._clock() - self.pass_started) if self._handles else 0.0

    @property
    def unhealthy_reason(self) -> str:
        """The reason why the server is unhealthy; empty without one."""
        if not self.problem and (seconds := self.pass_seconds) > STALL_SECONDS:
            return f"the model has been in one pass for {seconds:.0f} seconds: start the server again"
        return self.problem

    def submit(
        self, requests: Sequence[GenerationRequest], deliver: Callable[[int, StepOutput], None]
    ) -> list[RequestHandle]:
        """Queue the requests of one client; all of them, or none.
        deliver: called with a request's index and each of its outputs, in the engine's thread; it must not
        block. Raises UsageError for more requests than the limits ever allow, QueueFullError if there is no
        room now, and ClosingError. Any other error is in a request's `finish`."""
        if not requests:
            return []
        client, n, limits = requests[0].client, len(requests), self.limits
        handles = [self._engine.handle(request, partial(deliver, at)) for at, request in enumerate(requests)]
        grammars = dict.fromkeys(request.grammar for request in requests)
        with self._lock:
            if n > (most := min(self.sessions + limits.queue, limits.per_client or n)):
                raise UsageError(f"{n} completions requested: this server takes at most {most} at once")
            n_open = sum(handle.request.client == client for handle in self._handles.values())
            if limits.per_client and n_open + n > limits.per_client:
                allowed = f"at most {limits.per_client} may be"
                raise QueueFullError(f"{n_open} of your requests are open, {allowed}: wait for one")
            if self.problem:
                raise ClosingError(self.problem)
            if len(self._handles) + n > self.sessions + limits.queue:
                waiting = count(limits.queue, "request")
                raise QueueFullError(f"the queue is full ({waiting} waiting): try again later")
            self._handles.update((handle.scheduled, handle) for handle in handles)
            for grammar in grammars:
                same = [handle for handle in handles if handle.request.grammar == grammar]
                self._commands.put(partial(self._accept, same))
        return handles

    def cancel(self, handle: RequestHandle) -> None:
        """End a request without any further output. It may have ended already."""
        self._commands.put(lambda: self._cancel(handle, None))

    def announce_shutdown(self) -> None:
        """Refuse new requests from now on. It takes no lock, so signal handlers may call it."""
        self._closing = True

    def abort_all(self) -> None:
        """End all requests with ClosingError at once, without waiting for the pass under way."""
        self.announce_shutdown()
        self._commands.put(self._stop)
        for handle in self._open_handles():
            handle.deliver(StepOutput(finish=handle.finish_request(ClosingError(self.problem))))

    def close(self, patience: float | None = None) -> bool:
        """End all requests and the thread. Return false if the pass under way, which uses the model, has not
        ended within `patience` seconds; None: wait for its end."""
        self.announce_shutdown()
        self._commands.put(self._stop)
        self._jobs.shutdown(wait=patience is None, cancel_futures=True)
        self._thread.join(patience)
        return not self._thread.is_alive()

    def __enter__(self) -> ServingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_handles(self) -> list[RequestHandle]:
        with self._lock:
            return list(self._handles.values())

    async def run(self, begin: Callable[[], Generator[None, None, T]]) -> T:
        """Return the result of a generator that uses the model, in a thread beside the engine's: each of its
        steps has a turn between two passes. It begins again while there is no session for it.
        Raises QueueFullError, ClosingError and TooSlowError, and what it raises."""
        if self.problem:
            raise ClosingError(self.problem)
        if self._n_jobs > self.limits.queue:
            raise QueueFullError("the queue is full: try again later")
        over, loop = threading.Event(), asyncio.get_running_loop()
        self._n_jobs += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await loop.run_in_executor(self._jobs, self._run_steps, begin, over)
        except TimeoutError:
            raise TooSlowError(OVERDUE.format(self.limits.timeout)) from None
        finally:
            self._n_jobs -= 1
            over.set()

    def _run_steps(self, begin: Callable[[], Generator[None, None, T]], over: threading.Event) -> T:
        steps = begin()
        while not (over.is_set() or self.problem):
            try:
                with self._engine.exclusive():
                    next(steps)
            except StopIteration as done:
                return cast("T", done.value)
            except BusyError:
                steps = begin()
                over.wait(BUSY_SECONDS)
        with self._engine.exclusive():
            steps.close()
        raise ClosingError(self.problem)

    # The engine's thread calls what follows.

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
            with self._lock:
                self._closing = True
            closing = ClosingError(self.problem)
            for handle in self._open_handles():
                self._fail(handle, closing)
            self._engine.grammars.close()
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

    def _accept(self, handles: Sequence[RequestHandle]) -> None:
        """Queue requests of one client with the same grammar, which may have to be compiled first."""
        grammar, client = handles[0].grammar, handles[0].request.client
        if grammar is None:
            self._enqueue(handles, None)
            return
        done = partial(self._enqueue, handles)
        job = self._engine.grammars.submit(grammar, client, lambda it: self._commands.put(partial(done, it)))
        for handle in handles:
            handle.compiling = job

    def _enqueue(self, handles: Sequence[RequestHandle], grammar: CompiledGrammar | Exception | None) -> None:
        """Add the requests to the scheduler's queue, with their compiled grammar."""
        for handle in handles:
            handle.compiling = None
            if handle.is_over:
                continue
            try:
                if isinstance(grammar, Exception):
                    raise grammar
                if grammar is not None:
                    handle.scheduled.grammar = TextGrammar(grammar)
                self._scheduler.add(handle.scheduled)
            except Exception as error:
                self._fail(handle, error)
            else:
                handle.queued.set_result(True)

    def _expire(self) -> None:
        now = self._clock()
        for handle in self._open_handles():
            timeout = handle.request.timeout
            if timeout is not None and handle.arrived < now - timeout:
                self._cancel(handle, TooSlowError(OVERDUE.format(timeout)))

    def _run_pass(self) -> None:
        if self._scheduler.idle:
            return
        began = self._clock()
        with self._engine.exclusive():
            outputs = self._engine.step(self._scheduler, self._handles)
        for handle, output in outputs:
            if output.step is not None:
                self.metrics.step(output.step)
                self.live_stats.step(output.step)
            if output.finish is not None:
                self._finish(handle, output.finish)
            handle.deliver(output)
        n_tokens = sum(len(output.tokens) for _, output in outputs)
        self.live_stats.on_pass(self._clock() - began, n_tokens, self.running)

    def _cancel(self, handle: RequestHandle, error: Exception | None) -> None:
        if handle.scheduled not in self._handles:
            return
        with self._engine.exclusive():
            self._scheduler.cancel(handle.scheduled)
            self._engine.wake()
        job = handle.compiling
        handle.compiling = None
        if job is not None and not any(open_handle.compiling is job for open_handle in self._open_handles()):
            self._engine.grammars.cancel(job)
        if error is None:
            self._finish(handle, handle.finish_request())
        else:
            self._fail(handle, error)

    def _fail(self, handle: RequestHandle, error: Exception) -> None:
        """End a request with an error. Outputs that were delivered stay valid."""
        finish = handle.finish_request(error)
        self._finish(handle, finish)
        handle.deliver(StepOutput(finish=finish))

    def _finish(self, handle: RequestHandle, finish: Finish) -> None:
        error = finish.error
        expected = error is None or isinstance(error, UsageError | ClosingError | TooSlowError)
        if not expected and error is not self._logged:
            self._logged = error  # the same for all requests of a pass that failed
            log.error("the model has failed at a request", exc_info=error)
        with self._lock:
            del self._handles[handle.scheduled]
        self.metrics.end(finish)
