"""A model as its server has it: an engine's worker, with limits, metrics and figures for the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from paceline.api import LLM
from paceline.config import validate_drafting
from paceline.engine_worker import EngineObserver, EngineWorker
from paceline.request_handle import Finish, RequestHandle, StepOutput
from paceline.server.live_stats import LiveStats
from paceline.server.metrics import Metrics
from paceline.speculative.errors import UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step

PREFILL_CHUNK_TOKENS = 512  # tokens of prompts in a pass: what others wait for beside somebody's long prompt
STALL_SECONDS = 120.0  # seconds in one pass, after which the thread is taken to be stuck


class QueueFullError(UsageError):
    """More requests than the server takes now."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server. Raises UsageError.

    apart: past answers of a client are drafts for that client alone.
    queue: requests that wait, at most.
    each: requests of one client that are open, at most; 0: as many as there is room for.
    seconds: from a request's arrival to its last token.
    n_predict: tokens of an answer; 0: as many as the context has.
    sampling: fields of `Sampling` for requests that do not say; the others are OpenAI's defaults."""

    isolate_clients: bool = False
    queue: int = 64
    max_per_client: int = 0
    request_timeout: float = 600.0
    n_predict: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_drafting(Sampling, self.sampling)


class ServingEngine(EngineObserver):
    """Use it as a context manager, or close it. The model stays its caller's."""

    def __init__(
        self,
        llm: LLM,
        limits: ServerLimits | None = None,
        *,
        chunk: int = PREFILL_CHUNK_TOKENS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.llm, self.limits = llm, limits or ServerLimits()
        self.metrics, self.live_stats = Metrics(), LiveStats(llm, clock)
        self._clock = clock
        self._lock = threading.Lock()  # of the open requests
        self._open: dict[RequestHandle, None] = {}
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
        return max(0, len(self._open) - self.running)

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
        return max(0.0, self._clock() - self._worker.pass_started) if self._open else 0.0

    @property
    def health(self) -> str:
        """Why nothing can be expected of it; empty where all is well."""
        if not self.problem and (seconds := self.pass_seconds) > STALL_SECONDS:
            return f"the model has been in one pass for {seconds:.0f} seconds: start the server again"
        return self.problem

    def submit(
        self, requests: Sequence[GenerationRequest], deliver: Callable[[int, StepOutput], None]
    ) -> list[RequestHandle]:
        """Queue the answers of one client's request; all of them, or none. deliver: called with the number of
        an answer and every output of it, in the engine's thread: it must not wait. Raises UsageError where
        there will never be room, QueueFullError where there is none now, and ClosingError."""
        client, n, limits = requests[0].client, len(requests), self.limits
        with self._lock:
            if n > (most := min(self.sessions + limits.queue, limits.max_per_client or n)):
                raise UsageError(f"{n} answers at once: this server gives at most {most}; ask for less")
            own = sum(handle.request.client == client for handle in self._open)
            if limits.max_per_client and own + n > limits.max_per_client:
                raise QueueFullError(
                    f"{own} of your requests are open, at most {limits.max_per_client} may be: wait for one"
                )
            if len(self._open) + n > self.sessions + limits.queue and not self.problem:
                raise QueueFullError(f"the queue is full ({limits.queue} requests wait): try again later")
            handles = [self._worker.handle(one, partial(deliver, at)) for at, one in enumerate(requests)]
            self._worker.submit(handles)
            self._open.update(dict.fromkeys(handles))
        return handles

    def cancel(self, handle: RequestHandle) -> None:
        """Nothing more is told of it. Harmless where it is over."""
        self._worker.cancel(handle)

    def announce_shutdown(self) -> None:
        """Take nothing more. (Of a signal handler too: it takes no lock.)"""
        self._worker.announce_closing()

    def abort_all(self) -> None:
        """End all answers by an error, told at once: the pass under way may take long."""
        with self._lock:
            handles = list(self._open)
        self._worker.abort_all(handles)

    def close(self, patience: float | None = None) -> bool:
        """Take nothing more, and end what is here; see EngineWorker.close."""
        return self._worker.close(patience)

    def __enter__(self) -> ServingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the worker tells, in its thread.

    def on_step(self, step: Step) -> None:
        self.metrics.step(step)
        self.live_stats.step(step)

    def on_pass(self, seconds: float, n_tokens: int, n_running: int) -> None:
        self.live_stats.on_pass(seconds, n_tokens, n_running)

    def on_finish(self, handle: RequestHandle, finish: Finish) -> None:
        self.metrics.end(finish)
        with self._lock:
            self._open.pop(handle, None)
