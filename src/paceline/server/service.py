"""The engine's worker of a server, with limits, metrics and figures for the page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic

from paceline.api import LLM
from paceline.config import validate_drafting
from paceline.engine_worker import EngineWorker
from paceline.request_handle import Finish, RequestHandle, StepOutput
from paceline.server.live_stats import LiveStats
from paceline.server.metrics import Metrics
from paceline.speculative.errors import UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step

PREFILL_CHUNK_TOKENS = 512  # prompt tokens in a pass; it bounds the inter-token latency of other requests
STALL_SECONDS = 120.0  # in one pass, after which the server reports that it is unhealthy


class QueueFullError(UsageError):
    """More requests than the server takes now."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server. Raises UsageError.

    isolate_clients: past answers to a client are drafts for that client alone.
    queue: the most requests that wait.
    max_per_client: the most open requests of one client; 0: no limit.
    request_timeout: seconds from a request's arrival to its last token.
    n_predict: the most tokens of an answer; 0: what the context has room for.
    sampling: defaults for fields of `Sampling`; the other fields have OpenAI's defaults."""

    isolate_clients: bool = False
    queue: int = 64
    max_per_client: int = 0
    request_timeout: float = 600.0
    n_predict: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_drafting(Sampling, self.sampling)


class ServingEngine(EngineWorker):
    """The engine's worker of one server: a context manager. The caller closes the model."""

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
        self._open_lock = threading.Lock()  # guards `_open`
        self._open: dict[RequestHandle, None] = {}
        super().__init__(llm.engine, chunk, clock)

    # Any thread may call what follows.

    @property
    def waiting(self) -> int:
        return max(0, len(self._open) - self.running)

    @property
    def is_idle(self) -> bool:
        return not self._open and super().is_idle

    @property
    def pass_seconds(self) -> float:
        """Seconds since the pass under way began; 0 if no request waits or runs."""
        return max(0.0, self._clock() - self.pass_started) if self._open else 0.0

    @property
    def health(self) -> str:
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
        room now, and ClosingError."""
        client, n, limits = requests[0].client, len(requests), self.limits
        with self._open_lock:
            if n > (most := min(self.sessions + limits.queue, limits.max_per_client or n)):
                raise UsageError(f"{n} answers at once: this server gives at most {most}; ask for less")
            n_open = sum(handle.request.client == client for handle in self._open)
            if limits.max_per_client and n_open + n > limits.max_per_client:
                most = limits.max_per_client
                raise QueueFullError(
                    f"{n_open} of your requests are open, at most {most} may be: wait for one"
                )
            if len(self._open) + n > self.sessions + limits.queue and not self.problem:
                raise QueueFullError(f"the queue is full ({limits.queue} requests wait): try again later")
            handles = [self.handle(one, partial(deliver, at)) for at, one in enumerate(requests)]
            self.submit_handles(handles)
            self._open.update(dict.fromkeys(handles))
        return handles

    def abort_all(self) -> None:
        """End all requests with ClosingError at once, without waiting for the pass under way."""
        with self._open_lock:
            handles = list(self._open)
        self.abort(handles)

    def __enter__(self) -> ServingEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The worker calls what follows, in its thread.

    def on_step(self, step: Step) -> None:
        self.metrics.step(step)
        self.live_stats.step(step)

    def on_pass(self, seconds: float, n_tokens: int, n_running: int) -> None:
        self.live_stats.on_pass(seconds, n_tokens, n_running)

    def on_finish(self, handle: RequestHandle, finish: Finish) -> None:
        self.metrics.end(finish)
        with self._open_lock:
            self._open.pop(handle, None)
