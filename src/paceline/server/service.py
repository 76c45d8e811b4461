"""A model as its server has it: an engine's worker, with limits, metrics and figures for the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic

from paceline.api import LLM
from paceline.engine_worker import EngineObserver, EngineWorker
from paceline.request_handle import Deliver, Finish, RequestHandle
from paceline.server.live_stats import LiveStats
from paceline.server.metrics import Metrics
from paceline.server.request_limits import QueueFullError, ServerLimits
from paceline.speculative.errors import UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Step

CHUNK = 512  # tokens of prompts in a pass: what others wait for beside somebody's long prompt
STALLED = 120.0  # seconds in one pass, after which the thread is taken to be stuck


class ServingEngine(EngineObserver):
    """Use it as a context manager, or close it. The model stays its caller's."""

    def __init__(
        self,
        llm: LLM,
        limits: ServerLimits | None = None,
        *,
        chunk: int = CHUNK,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.llm, self.limits = llm, limits or ServerLimits()
        self.metrics, self.lately = Metrics(), LiveStats(llm, clock)
        self._clock = clock
        self._lock = threading.Lock()  # of the open requests, by client, in order
        self._open: dict[str, dict[RequestHandle, None]] = {}
        self._worker = EngineWorker(llm.engine, self, chunk, clock)

    # What any thread may ask.

    @property
    def sessions(self) -> int:
        return self._worker.sessions

    @property
    def running(self) -> int:
        return self._worker.n_running

    @property
    def waiting(self) -> int:
        return max(0, self._n_open - self.running)

    @property
    def _n_open(self) -> int:
        return sum(map(len, list(self._open.values())))

    @property
    def is_idle(self) -> bool:
        """Nobody waits, runs or holds a session."""
        return not self._open and self._worker.idle

    @property
    def has_failed(self) -> bool:
        return self._worker.failure is not None

    @property
    def problem(self) -> str:
        """Why nothing can be asked of it; empty where all is well."""
        return self._worker.problem

    @property
    def pass_seconds(self) -> float:
        """How long the worker has been in the pass that it is in; 0 where nothing waits or runs."""
        return max(0.0, self._clock() - self._worker.pass_began) if self._open else 0.0

    @property
    def health(self) -> str:
        """Why nothing can be expected of it; empty where all is well."""
        if not self.problem and (seconds := self.pass_seconds) > STALLED:
            return f"the model has been in one pass for {seconds:.0f} seconds: start the server again"
        return self.problem

    def submit(
        self, requests: Sequence[GenerationRequest], deliver: Callable[[int], Deliver]
    ) -> list[RequestHandle]:
        """Queue the answers of one client's request; all of them, or none. deliver: called with every output
        of each, in the engine's thread: it must not wait. Raises UsageError where there will never be room,
        QueueFullError where the queue is full or the client has too much in it, and ClosingError."""
        client, n = requests[0].client, len(requests)
        with self._lock:
            limits, own = self.limits, len(self._open.get(client, ()))
            if n > (most := min(self.sessions + limits.queue, limits.each or n)):
                raise UsageError(f"{n} answers at once: this server gives at most {most}; ask for less")
            if limits.each and own + n > limits.each:
                raise QueueFullError(
                    f"{own} of your requests are open, and {limits.each} may be: wait for one of them",
                    self._expected(1),
                )
            outvoted = [] if self.problem else self._outvoted(client, n)
            handles = [self._worker.handle(one, deliver(at)) for at, one in enumerate(requests)]
            self._worker.submit(handles)
            for handle in outvoted:
                self._release(handle)
                self._worker.evict(handle, self._full())
            self._open.setdefault(client, {}).update(dict.fromkeys(handles))
        return handles

    def _outvoted(self, client: str, n: int) -> list[RequestHandle]:
        """The waiting requests whose places `n` of that client take where the queue is full: the last of
        whoever has most there, as long as that is more than the client would have. Raises QueueFullError."""
        waiting = {
            name: [handle for handle in own if handle.scheduled.state == "waiting"]
            for name, own in self._open.items()
        }
        would_have = len(waiting.pop(client, ())) + n
        out: list[RequestHandle] = []
        for _ in range(self._n_open + n - self.sessions - self.limits.queue):
            most = max(waiting.values(), key=len, default=[])
            if len(most) <= would_have:
                raise self._full()
            out.append(most.pop())
        return out

    def _full(self) -> QueueFullError:
        return QueueFullError(
            f"the queue is full ({self.limits.queue} requests wait): try again later",
            self._expected(self.waiting),
        )

    def _expected(self, before: int) -> float:
        """Seconds until so many have left the queue, guessed from how long answers took of late."""
        return min(60.0, max(1.0, self.lately.seconds * (before / self.sessions)))

    def _release(self, handle: RequestHandle) -> None:
        """Give its place away, under the lock. Harmless where it has none."""
        client = handle.request.client
        own = self._open.get(client, {})
        own.pop(handle, None)
        if not own:
            self._open.pop(client, None)

    def cancel(self, handle: RequestHandle) -> None:
        """Nothing more is told of it. Harmless where it is over."""
        self._worker.cancel(handle)

    def announce(self) -> None:
        """Take nothing more. (Of a signal handler too: it takes no lock.)"""
        self._worker.announce_closing()

    def break_off(self) -> None:
        """End all answers by an error, told at once: the pass under way may take long."""
        with self._lock:
            handles = [handle for own in self._open.values() for handle in own]
        self._worker.break_off(handles)

    def close(self, wait: float = 0.0, patience: float | None = None) -> bool:
        """Take nothing more, and give those that are here `wait` seconds to end; see EngineWorker.close."""
        self.announce()
        until = self._clock() + wait
        while self._open and self._worker.is_alive and (left := until - self._clock()) > 0:
            threading.Event().wait(min(left, 0.05))
        return self._worker.close(patience)

    def __enter__(self) -> ServingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the worker tells, in its thread.

    def on_step(self, step: Step) -> None:
        self.metrics.step(step)
        self.lately.step(step)

    def on_pass(self, seconds: float, n_tokens: int, n_running: int) -> None:
        self.lately.passed(seconds, n_tokens)
        self.lately.look(n_running)

    def on_finish(self, handle: RequestHandle, finish: Finish) -> None:
        self.metrics.end(finish)
        self.lately.end(finish)
        with self._lock:
            self._release(handle)

    def on_idle(self) -> None:
        self.lately.rest()
