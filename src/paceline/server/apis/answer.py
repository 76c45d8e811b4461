"""One HTTP request's answers as OpenAI's deltas and messages, of which every API's form is made."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from paceline.api import LLM
from paceline.backends.logit_drift import teacher_forced_passes
from paceline.request_handle import Finish, RequestHandle, StepOutput
from paceline.server.convert import ParsedRequest
from paceline.server.schemas import Json
from paceline.speculative.interfaces import Target
from paceline.speculative.sampling import logprob
from paceline.speculative.stats import Logprob
from paceline.text.tools.parser import AnswerParser, AssistantMessage, MessageDelta

SCORED_ROWS = 64  # tokens of a prompt in a pass that computes their log-probabilities
MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have

Scores = Sequence[Sequence[Logprob]]  # of a prompt's tokens but the first
Event = tuple[str, Json]  # its name, which may be empty, and its data


@dataclass
class ContentBlock:
    """A part of an answer. text: of a call, its arguments."""

    kind: Literal["reasoning", "text", "call"]
    index: int
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


# ("start", block, ""), ("text", block, what is new) or ("stop", block, "")
BlockEvent = tuple[str, ContentBlock, str]


@dataclass
class AnswerState:
    """An answer so far. blocks: its thoughts, texts, and calls.
    events: what the last output began, continued and ended."""

    handle: RequestHandle
    parser: AnswerParser | None = None
    parsed: list[MessageDelta] = field(default_factory=list)
    blocks: list[ContentBlock] = field(default_factory=list)
    events: list[BlockEvent] = field(default_factory=list)
    has_progress: bool = False  # of its prompt was reported, and was it the last
    is_prefilled: bool = False

    def deltas(self, update: StepOutput) -> list[Json]:
        """Add an output; return what is new in OpenAI's form."""
        new = [MessageDelta(content=update.text)] if update.text else []
        if self.parser is not None:
            new = self.parser.feed(update.text)
            if update.finish is not None:
                new += self.parser.finish(cut=update.finish.is_truncated)
        self.parsed += new
        self.events = []
        for delta in new:
            self._add("reasoning", delta.reasoning)
            self._add("text", delta.content)
            if delta.id:
                self._open(ContentBlock("call", len(self.blocks), delta.id, delta.name))
            self._add("call", delta.arguments)
        if update.finish is not None:
            if not self.blocks:
                self._open(ContentBlock("text", 0))
            self.events.append(("stop", self.blocks[-1], ""))
        return [delta.openai() for delta in new]

    def _add(self, kind: Literal["reasoning", "text", "call"], text: str) -> None:
        """Add to the last block, or begin one of another kind."""
        if text and (not self.blocks or self.blocks[-1].kind != kind):
            self._open(ContentBlock(kind, len(self.blocks)))
        if text:
            self.blocks[-1].pieces.append(text)
            self.events.append(("text", self.blocks[-1], text))

    def _open(self, block: ContentBlock) -> None:
        if self.blocks:
            self.events.append(("stop", self.blocks[-1], ""))
        self.blocks.append(block)
        self.events.append(("start", block, ""))

    @property
    def finish(self) -> Finish:
        assert self.handle.finish is not None
        return self.handle.finish

    @property
    def message(self) -> Json:
        return AssistantMessage.of(self.parsed).openai()

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason."""
        if self.finish.is_truncated:
            return "length"
        return "tool_calls" if any(block.kind == "call" for block in self.blocks) else "stop"


class Answers:
    """All answers of one HTTP request. scores: of each prompt, if they are wanted."""

    def __init__(self, llm: LLM, parsed: ParsedRequest, handles: list[RequestHandle], scores: Scores) -> None:
        new_parser = parsed.new_parser
        self.all = [AnswerState(handle, new_parser() if new_parser else None) for handle in handles]
        self._llm, self._n, self._scores, self.only_prompts = llm, parsed.n, scores, parsed.only_prompts

    @property
    def ends(self) -> list[Finish]:
        """The end of each answer, or its state so far."""
        return [answer.handle.finish or answer.handle.snapshot() for answer in self.all]

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompts. Each counts once, however many answers it has."""
        return sum(len(answer.handle.request.prompt) for answer in self.all[:: self._n])

    @property
    def n_cached(self) -> int:
        return sum(end.n_cached for end in self.ends[:: self._n])

    @property
    def n_tokens(self) -> int:
        return 0 if self.only_prompts else sum(len(answer.handle.tokens) for answer in self.all)

    def prompt(self, index: int) -> tuple[list[int], list[Logprob | None]]:
        """Return the tokens of an answer's prompt, and their log-probabilities if they are known."""
        known = self._scores[index // self._n] if self._scores else ()
        return list(self.all[index].handle.request.prompt), [None, *known]

    def prompt_text(self, index: int = 0) -> str:
        """Return a prompt with its control tokens."""
        return visible_text(self._llm, self.all[index].handle.request.prompt)

    def text(self, token: int, *, visible: bool = False) -> str:
        """Return a token's text. visible: also that of a control token."""
        piece = self._llm.target.text.piece(token).decode(errors="replace")
        return visible_text(self._llm, [token]) if visible else piece

    def token_json(self, token: int, logprob: float) -> Json:
        """Return a token with its log-probability in the form of OpenAI's chats."""
        piece = list(self._llm.target.text.piece(token))
        return {"token": self.text(token), "logprob": finite_logprob(logprob), "bytes": piece}

    def timings(self) -> Json:
        """Return llama-server's timings so far, summed over the answers."""
        ends = self.ends
        prefill = sum(end.n_prompt - end.n_cached - end.n_skipped for end in ends)
        prefill_seconds = sum(max(0.0, end.first_token_seconds - end.queue_seconds) for end in ends)
        n_tokens, decode_seconds = sum(end.n_tokens for end in ends), sum(end.decode_seconds for end in ends)
        n_after_first = sum(max(0, end.n_tokens - 1) for end in ends)
        return {
            "cache_n": sum(end.n_cached for end in ends),
            "prompt_n": prefill,
            "prompt_ms": 1000 * prefill_seconds,
            "prompt_per_token_ms": 1000 * prefill_seconds / max(1, prefill),
            "prompt_per_second": prefill / prefill_seconds if prefill_seconds else 0.0,
            "predicted_n": n_tokens,
            "predicted_ms": 1000 * decode_seconds,
            "predicted_per_token_ms": 1000 * decode_seconds / max(1, n_after_first),
            "predicted_per_second": n_after_first / decode_seconds if decode_seconds else 0.0,
            "draft_n": sum(end.stats.drafted for end in ends),
            "draft_n_accepted": sum(end.stats.accepted for end in ends),
        }

    def draft_counts(self) -> Json:
        """Return the drafted and the accepted tokens by drafter, and the steps."""
        all_stats, drafted, accepted = [end.stats for end in self.ends], Counter[str](), Counter[str]()
        for name, source in (item for stats in all_stats for item in stats.by_source.items()):
            drafted[name] += source.drafted
            accepted[name] += source.accepted
        steps = sum(stats.steps for stats in all_stats)
        return {"drafted": dict(drafted), "accepted": dict(accepted), "steps": steps}

    def progress(self, index: int, update: StepOutput) -> Iterator[Json]:
        """Yield llama-server's progress of a prompt: what was in the cache, and each pass's end."""
        answer = self.all[index]
        if update.step is None or answer.is_prefilled:
            return
        handle, now = answer.handle, answer.handle.snapshot()
        seconds = now.first_token_seconds - now.queue_seconds
        out = {"total": now.n_prompt, "cache": now.n_cached, "time_ms": 1000 * seconds}
        if not answer.has_progress:
            yield out | {"processed": now.n_cached}
        answer.has_progress, answer.is_prefilled = True, bool(update.tokens)
        yield out | {"processed": now.n_prompt if update.tokens else now.n_cached + handle.n_prefilled}


class Writer(ABC):
    """The form of one API's response. trailer: ends its streams."""

    trailer: ClassVar[str] = ""

    def __init__(self, answers: Answers, model: str, body: Any) -> None:
        self._answers, self._model, self._body = answers, model, body

    def begin(self) -> Iterator[Event]:
        """Yield the events before the first output."""
        yield from ()

    @abstractmethod
    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        """Yield the events of one answer's output."""

    def end(self) -> Iterator[Event]:
        """Yield the events after the last output."""
        yield from ()

    def failed(self, body: Json) -> Event:
        """Return the event that ends a stream with an error. body: of the error's response."""
        return "", body

    @abstractmethod
    def full(self) -> Any:
        """Return the response without streaming."""


class BlockWriter(Writer):
    """A form whose answers are sequences of blocks. A request has one answer, or none."""

    @property
    def _blocks(self) -> list[ContentBlock]:
        return self._answers.all[0].blocks if self._answers.all else []

    @abstractmethod
    def block_events(self, action: str, block: ContentBlock, text: str) -> Iterator[Event]:
        """Yield the events of one of the answer's `events`."""

    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        for event in self._answers.all[index].events:
            yield from self.block_events(*event)


def prompt_logprobs(target: Target, prompt: Sequence[int], n: int) -> Generator[None, None, list[Logprob]]:
    """Return the log-probability of each token of a prompt but the first, with the `n` likeliest ones.
    Yields between the passes."""
    caps, out = target.caps, list[Logprob]()
    rows = 1 if caps.rollback == "none" else min(SCORED_ROWS, caps.max_batch_tokens, 1 + caps.max_tree_nodes)
    for logits in teacher_forced_passes(target, prompt, 1, rows):
        following = prompt[len(out) + 1 :]
        out += [Logprob(*logprob(row, token, n)) for row, token in zip(logits, following, strict=False)]
        yield
    return out


def visible_text(llm: LLM, tokens: Sequence[int]) -> str:
    """Return the text of tokens, control tokens included."""
    piece, name = llm.target.text.piece, llm.target.vocab.text
    return b"".join(piece(token) or name(token) for token in tokens).decode(errors="replace")


def finite_logprob(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB


def log_fields(end: Finish) -> Mapping[str, Any]:
    """Return the fields of an answer in the log, which has nothing of the text."""
    reason = end.reason or ("cancelled" if end.error is None else type(end.error).__name__)
    counts = {"prompt": end.n_prompt, "cached": end.n_cached, "tokens": end.n_tokens}
    drafts = {"drafted": end.stats.drafted, "accepted": end.stats.accepted}
    seconds = {"waited": end.queue_seconds, "first": end.first_token_seconds, "rest": end.decode_seconds}
    rounded = {name: round(value, 4) for name, value in seconds.items()}
    return {"reason": reason, **counts, **drafts, **rounded}
