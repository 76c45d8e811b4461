"""One answer on its way, and what comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from paceline.speculative.loop import Clock
from paceline.speculative.policy.drafting_summary import DraftingSummary
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest
from paceline.speculative.stats import Logprob, Stats, Step, StopReason
from paceline.text.detokenizer import Detokenizer, visible_pieces
from paceline.text.grammar_pool import GrammarJob

log = logging.getLogger("paceline.engine")


@dataclass(frozen=True)
class Finish:
    """How an answer ended: by a reason, or by an error; neither where it was cancelled.

    n_cached: tokens of the prompt that were in the KV cache.
    queue_seconds, first_token_seconds: since arrival.
    decode_seconds: from the first token to the last."""

    reason: StopReason | None
    error: Exception | None
    n_prompt: int
    n_cached: int
    n_tokens: int
    queue_seconds: float
    first_token_seconds: float
    decode_seconds: float
    stats: Stats

    @property
    def is_truncated(self) -> bool:
        """Whether there would have been more."""
        return self.reason not in ("eos", "stop")


@dataclass(frozen=True)
class StepOutput:
    """What one step adds to an answer.

    parts: text, each with the drafter that it came from ("target": none).
    tokens, sources: the emitted tokens, and where each came from.
    logprobs: of each token, where the request asked for them.
    finish: with the last step."""

    parts: tuple[tuple[str, str], ...] = ()
    tokens: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    finish: Finish | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


Deliver = Callable[[StepOutput], None]  # of an engine's thread: it must not wait


@dataclass(frozen=True)
class Generation:
    """A whole answer, or as much of it as there is.

    stop_reason: None where it was left early.
    n_prompt: tokens of the prompt.
    n_read: those that were read before the first draft; the others were in the cache already, or few enough
    to be computed with the first draft.
    prompt_seconds: of reading the prompt.
    seconds: from the first draft to the last token.
    logprobs: one a token where the request asked for them.
    complete: whether the text matches the request's grammar; None without one.
    account: what the policy says of all requests so far; None where it decides nothing."""

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

    @property
    def tokens_per_second(self) -> float:
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """None where nothing of the prompt was read by itself."""
        return (
            self.n_prefilled / self.prompt_seconds if self.n_prefilled and self.prompt_seconds > 0 else None
        )


class RequestHandle:
    """A request that an engine has taken, with its text, tokens and times so far. One thread at a time
    changes it: the one that decodes."""

    def __init__(
        self,
        request: GenerationRequest,
        piece: Callable[[int], bytes] | None,
        clock: Clock,
        deliver: Deliver | None = None,
    ) -> None:
        """piece: the bytes of a token; None where nobody wants text. deliver: called with every output, by
        the engine's thread: it must not wait."""
        self.request, self._clock, self._deliver = request, clock, deliver
        self._text: Detokenizer | None = None
        if piece is not None:
            self._text = Detokenizer(visible_pieces(piece, request.visible_control_tokens), request.stop)
        self.scheduled = ScheduledRequest(request, request.should_stop or self._text)
        self.tokens: list[int] = []
        self.sources: list[str] = []
        self.logprobs: list[Logprob] = []
        self._parts: list[str] = []
        self.arrived = clock()
        self.started: float | None = None  # when it left the queue
        self.first_token = 0.0
        self.prompt_seconds = self.seconds = 0.0  # of passes
        self.n_prefilled = 0
        self.finish: Finish | None = None
        self.queued: Future[bool] = Future()  # whether it has joined the queue, its grammar compiled
        self.queued.set_running_or_notify_cancel()  # whoever waits for it cannot cancel it
        self.compiling: GrammarJob | None = None

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def is_over(self) -> bool:
        return self.finish is not None

    @property
    def stats(self) -> Stats:
        active = self.scheduled.active
        return Stats() if active is None else active.stats

    def add_step(self, step: Step, seconds: float) -> StepOutput:
        """What the step adds. seconds: that it took."""
        if not step.tokens:
            self.n_prefilled += step.batch_tokens
            self.prompt_seconds += seconds
            return StepOutput()
        if not self.tokens:
            self.first_token = self._clock()
        self.seconds += seconds
        self.tokens += step.tokens
        self.sources += step.sources
        self.logprobs += step.logprobs
        finish = None if step.stop_reason is None else self.finish_request()
        parts = self._take_text(last=finish is not None)
        return StepOutput(parts, step.tokens, step.sources, step.logprobs, finish)

    def _take_text(self, *, last: bool) -> tuple[tuple[str, str], ...]:
        if self._text is None:
            return ()
        taken = self._text.finish() if last else self._text.take_text()
        self._parts += [text for text, _ in taken]
        return tuple((text, self.sources[min(at, len(self.sources) - 1)]) for text, at in taken)

    def finish_request(self, error: Exception | None = None) -> Finish:
        """By what the loop says, by an error, or because it was cancelled."""
        now, active = self._clock(), self.scheduled.active
        first = self.first_token or now
        self.finish = Finish(
            reason=None if active is None or error is not None else active.stop_reason,
            error=error,
            n_prompt=len(self.request.prompt),
            n_cached=0 if active is None else active.n_cached,
            n_tokens=len(self.tokens),
            queue_seconds=(now if self.started is None else self.started) - self.arrived,
            first_token_seconds=first - self.arrived,
            decode_seconds=now - first,
            stats=self.stats,
        )
        if not self.queued.done():
            self.queued.set_result(False)
        return self.finish

    def detach(self) -> None:
        """No more outputs are taken; text that was held back is certain."""
        if self._text is not None:
            self._parts += [text for text, _ in self._text.finish()]
        self.finish_request()

    def deliver(self, output: StepOutput) -> None:
        """Nothing comes after an output with a `finish`."""
        deliver = self._deliver
        if output.finish is not None:
            self._deliver = None
        if deliver is not None:
            try:
                deliver(output)
            except Exception:  # whoever listened has gone
                log.debug("an output was for nobody", exc_info=True)

    def result(self, account: DraftingSummary | None) -> Generation:
        text, grammar = self.text, self.request.grammar
        active = self.scheduled.active
        return Generation(
            text=text,
            tokens=tuple(self.tokens),
            stop_reason=None if active is None else active.stop_reason,
            n_prompt=len(self.request.prompt),
            n_tokens=len(self.tokens),
            prompt_seconds=self.prompt_seconds,
            seconds=self.seconds,
            stats=self.stats,
            logprobs=tuple(self.logprobs),
            complete=None if grammar is None else grammar.matches(text),
            drafting_summary=account,
            n_prefilled=self.n_prefilled,
        )
