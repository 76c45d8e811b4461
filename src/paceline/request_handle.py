"""A request that an engine decodes, its outputs and its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from paceline.speculative.loop import Clock
from paceline.speculative.policy.ledger import DraftingSummary
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest
from paceline.speculative.stats import TARGET, Logprob, Stats, Step, StopReason
from paceline.text.detokenizer import Detokenizer, visible_pieces
from paceline.text.grammar_pool import GrammarJob
from paceline.text.grammar_source import GrammarSource

log = logging.getLogger("paceline.engine")


@dataclass(frozen=True)
class Finish:
    """The end of an answer, with a reason or an error; without both if it was cancelled.

    n_cached: tokens of the prompt that were in the KV cache. n_skipped: those left out (lossy prefill).
    queue_seconds, first_token_seconds: since arrival, until it left the queue and until its first token.
    decode_seconds: from the first token to the last."""

    reason: StopReason | None
    error: Exception | None
    n_prompt: int
    n_cached: int
    n_skipped: int
    n_tokens: int
    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    stats: Stats

    @property
    def is_truncated(self) -> bool:
        """True if a limit ended the answer."""
        return self.reason not in ("eos", "stop")


@dataclass(frozen=True)
class StepOutput:
    """What one step adds to an answer.

    step: the step; None if the request ended without one.
    parts: pieces of text, each with its drafter, or "target".
    finish: set by the last step."""

    step: Step | None = field(default=None, repr=False)
    parts: tuple[tuple[str, str], ...] = ()
    finish: Finish | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return () if self.step is None else self.step.tokens

    @property
    def sources(self) -> tuple[str, ...]:
        """The drafter of each token, or "target"."""
        return () if self.step is None else self.step.sources

    @property
    def logprobs(self) -> tuple[Logprob, ...]:
        """The log-probability of each token, if the request has `logprobs`."""
        return () if self.step is None else self.step.logprobs

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


Deliver = Callable[[StepOutput], None]  # called in the engine's thread; it must not block


@dataclass(frozen=True)
class Generation:
    """A whole answer, or the part that is decoded so far.

    stop_reason: None if the answer has not ended.
    n_prompt: tokens of the prompt.
    n_prefilled: prompt tokens that were prefilled before the first draft; the others were in the KV cache,
    shared the first draft's pass, or were left out (n_skipped: lossy prefill). n_cached: those in the cache.
    prompt_seconds: time of those prefill passes, and of choosing what is left out.
    seconds: from the first draft to the last token.
    logprobs: one for each token, if the request has `logprobs`.
    complete: whether the text matches the request's grammar; None without a grammar.
    drafting_summary: the policy's summary of all requests so far; None if the policy decides nothing."""

    text: str
    tokens: tuple[int, ...]
    stop_reason: StopReason | None
    n_prompt: int
    n_tokens: int
    prompt_seconds: float
    seconds: float
    stats: Stats = field(repr=False)
    logprobs: tuple[Logprob, ...] = field(default=(), repr=False)
    complete: bool | None = None
    drafting_summary: DraftingSummary | None = field(default=None, repr=False)
    n_prefilled: int = 0
    n_skipped: int = 0
    n_cached: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Prefill throughput; None without a prefill pass."""
        if not self.n_prefilled or self.prompt_seconds <= 0:
            return None
        return self.n_prefilled / self.prompt_seconds


class RequestHandle:
    """A request of an engine, with its text, tokens and times so far. Only the decoding thread changes it.

    piece: returns the bytes of a token; None: outputs have no text.
    deliver: called with every output."""

    def __init__(
        self,
        request: GenerationRequest,
        piece: Callable[[int], bytes] | None,
        clock: Clock,
        deliver: Deliver | None = None,
    ) -> None:
        self.request, self._clock, self._deliver = request, clock, deliver
        self._text: Detokenizer | None = None
        if piece is not None:
            pieces = visible_pieces(piece, request.visible_control_tokens)
            self._text = Detokenizer(pieces, request.stop, request.min_tokens)
        self.scheduled = ScheduledRequest(request, request.should_stop or self._text)
        self.tokens: list[int] = []
        self.sources: list[str] = []
        self.logprobs: list[Logprob] = []
        self.parts: list[tuple[str, str]] = []  # of its text, each with its drafter
        self.arrived = clock()
        self.started: float | None = None  # time at which it left the queue
        self.first_token = 0.0
        self.prompt_seconds = self.seconds = 0.0  # in passes
        self.n_prefilled = 0
        self.finish: Finish | None = None
        # True once the request is queued with its grammar, false if it ends before.
        self.queued: Future[bool] = Future()
        self.queued.set_running_or_notify_cancel()  # from here on a waiter cannot cancel it
        self.compiling: GrammarJob | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return None if self._text is None else self._text.stop_string

    @property
    def is_over(self) -> bool:
        return self.finish is not None

    @property
    def grammar(self) -> GrammarSource | None:
        """The grammar to compile before the request is queued."""
        grammar = self.request.grammar
        assert grammar is None or isinstance(grammar, GrammarSource)
        return grammar

    @property
    def stats(self) -> Stats:
        active = self.scheduled.active
        return Stats() if active is None else active.stats

    def add_step(self, step: Step, began: float, seconds: float) -> StepOutput:
        """Record a step and return its output. began: time of the pass. seconds: the step's share of it."""
        self.started = self.started or began
        if not step.tokens:
            self.n_prefilled += step.batch_tokens
            self.prompt_seconds += seconds
            return StepOutput(step)
        if not self.tokens:
            self.first_token = self._clock()
        self.seconds += seconds
        self.tokens += step.tokens
        self.sources += step.sources
        self.logprobs += step.logprobs
        finish = None if step.stop_reason is None else self.finish_request()
        parts = self._take_text(last=finish is not None)
        return StepOutput(step, parts, finish)

    def _take_text(self, *, last: bool) -> tuple[tuple[str, str], ...]:
        if self._text is None:
            return ()
        taken = self._text.finish() if last else self._text.take_text()
        sources = self.sources or [TARGET]  # empty if Ctrl-C came before the step was recorded
        parts = tuple((text, sources[min(at, len(sources) - 1)]) for text, at in taken)
        self.parts += parts
        return parts

    def finish_request(self, error: Exception | None = None) -> Finish:
        """Set and return `finish`: with the error, else the loop's stop reason, else neither (cancelled)."""
        self.finish = self.snapshot(error)
        if not self.queued.done():
            self.queued.set_result(False)
        return self.finish

    def snapshot(self, error: Exception | None = None) -> Finish:
        """Return what `finish` would be if the answer ended now."""
        now, active = self._clock(), self.scheduled.active
        first = self.first_token or now
        return Finish(
            reason=None if active is None or error is not None else active.stop_reason,
            error=error,
            n_prompt=len(self.request.prompt),
            n_cached=0 if active is None else active.n_cached,
            n_skipped=0 if active is None else active.n_skipped,
            n_tokens=len(self.tokens),
            queue_seconds=(now if self.started is None else self.started) - self.arrived,
            first_token_seconds=first - self.arrived,
            decode_seconds=now - first,
            stats=self.stats,
        )

    def finish_early(self) -> None:
        """End an answer early, with the text that the detokenizer holds back."""
        self._take_text(last=True)
        self.finish_request()

    def deliver(self, output: StepOutput) -> None:
        """Call the listener. An output with a `finish` is the last one."""
        deliver = self._deliver
        if output.finish is not None:
            self._deliver = None
        if deliver is not None:
            try:
                deliver(output)
            except Exception:  # such as a closed event loop
                log.debug("an output was not delivered", exc_info=True)

    def result(self, summary: DraftingSummary | None) -> Generation:
        text, grammar, end = self.text, self.request.grammar, self.finish or self.snapshot()
        return Generation(
            text=text,
            tokens=tuple(self.tokens),
            stop_reason=end.reason,
            n_prompt=end.n_prompt,
            n_tokens=end.n_tokens,
            prompt_seconds=self.prompt_seconds,
            seconds=self.seconds,
            stats=end.stats,
            logprobs=tuple(self.logprobs),
            complete=None if grammar is None else grammar.matches(text),
            drafting_summary=summary,
            n_prefilled=self.n_prefilled,
            n_skipped=end.n_skipped,
            n_cached=end.n_cached,
        )
