"""Answers as HTTP has them: OpenAI's objects, with llama-server's `timings` and what was drafted."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.api import LLM
from paceline.request_handle import Finish, StepOutput
from paceline.server.convert import ParsedRequest
from paceline.server.tool_stream import ChunkDelta, ToolDeltaReader
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Logprob
from paceline.text.tools.parser import parse_tool_calls

MIN_LOGPROB = -9999.0  # for a log-probability of minus infinity, which JSON cannot spell

Json = dict[str, Any]


@dataclass
class ChoiceState:
    """One answer so far."""

    index: int
    text: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    end: Finish | None = None

    def take(self, update: StepOutput) -> None:
        self.text += update.text
        self.parts += update.parts
        self.tokens += update.tokens
        self.logprobs += update.logprobs
        self.end = update.finish or self.end


class ResponseBuilder:
    """Of one request. n: answers to each prompt. calls: how they are read. report: tell who drafted what."""

    def __init__(
        self, llm: LLM, model: str, chat: bool, n: int, request: ParsedRequest, *, report: bool
    ) -> None:
        self._llm, self._n, self._report = llm, n, report
        self._logprobs, self._calls = request.requests[0].logprobs is not None, request.calls
        self.chat = chat
        self._readers: dict[int, ToolDeltaReader] = {}
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._base = {"id": self.id, "created": int(time.time()), "model": model}
        self._offsets: Counter[int] = Counter()

    def role_chunks(self, n: int) -> list[Json]:
        """A chat's first chunks, which tell who speaks."""
        if not self.chat:
            return []
        return [
            self._chunk([self._streamed(at, {"role": "assistant", "content": ""}, None, None)])
            for at in range(n)
        ]

    def chunks(self, choices: Sequence[ChoiceState], index: int, update: StepOutput) -> list[Json]:
        """The chunks of one update; none where there is nothing to tell yet. The last of all tells how long
        it took."""
        out = []
        reader = self._reader(index)
        likely = self._logprobs_json(index, update)
        lines = reader.read(update)
        if not lines and likely is not None and update.tokens:
            lines = [ChunkDelta({"content": ""}, [])]  # tokens whose text is held back are told at once
        for one in lines:
            delta: Any = one.delta if self.chat else one.delta["content"]
            chunk = self._chunk([self._streamed(index, delta, likely, None)])
            likely = None  # with the first of them
            if self._report:
                chunk["speculative"] = {"parts": [list(part) for part in one.parts]}
            out.append(chunk)
        if update.finish is not None:
            empty: Any = {} if self.chat else ""
            last = self._chunk(
                [self._streamed(index, empty, None, finish_reason(update.finish, reader.calls))]
            )
            if all(choice.end is not None for choice in choices):
                ends = finished_choices(choices)
                last["timings"] = timings(ends)
                if self._report:
                    last["speculative"] = draft_counts(ends)
            out.append(last)
        return out

    def usage(self, choices: Sequence[ChoiceState]) -> Json:
        """The chunk after the last, where it was asked for."""
        return self._chunk([]) | {"usage": self._usage(choices)}

    def usage_so_far(self, asks: Sequence[GenerationRequest], choices: Sequence[ChoiceState]) -> Json:
        prompt = sum(len(ask.prompt) for ask in asks[:: self._n])
        return usage_counts(prompt, sum(len(choice.tokens) for choice in choices))

    def full_response(self, choices: Sequence[ChoiceState]) -> Json:
        ends = finished_choices(choices)
        kind = "chat.completion" if self.chat else "text_completion"
        out = {
            **self._base,
            "object": kind,
            "choices": [self._finished(choice) for choice in choices],
            "usage": self._usage(choices),
            "timings": timings(ends),
        }
        if self._report:
            parts = [[list(part) for part in choice.parts] for choice in choices]
            out["speculative"] = {"parts": parts, **draft_counts(ends)}
        return out

    def _reader(self, index: int) -> ToolDeltaReader:
        return self._readers.setdefault(index, ToolDeltaReader(self._calls))

    def _finished(self, choice: ChoiceState) -> Json:
        assert choice.end is not None
        likely = self._logprobs_json(
            choice.index, StepOutput(tokens=tuple(choice.tokens), logprobs=tuple(choice.logprobs))
        )
        out: Json = {"index": choice.index, "logprobs": likely, "finish_reason": finish_reason(choice.end, 0)}
        if not self.chat:
            return {**out, "text": choice.text}
        message: Json = {"role": "assistant", "content": choice.text}
        if self._calls is not None:
            read = parse_tool_calls(
                self._calls.format,
                self._calls.tools,
                self._calls.answer_prefix + choice.text,
                cut=choice.end.is_truncated,
            )
            message = read.openai()
            out["finish_reason"] = finish_reason(choice.end, len(read.calls))
        return {**out, "message": {**message, "refusal": None}}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._base, "object": kind, "choices": choices}

    def _streamed(self, index: int, delta: Any, likely: Any, reason: str | None) -> Json:
        what = "delta" if self.chat else "text"
        return {"index": index, what: delta, "logprobs": likely, "finish_reason": reason}

    def _logprobs_json(self, index: int, update: StepOutput) -> Json | None:
        if not self._logprobs:
            return None
        reported = list(zip(update.tokens, update.logprobs, strict=True))
        if self.chat:
            content = [
                {**self._token(token, one.logprob), "top_logprobs": [self._token(*top) for top in one.top]}
                for token, one in reported
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(token) for token, _ in reported]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [finite_logprob(one.logprob) for _, one in reported],
            "top_logprobs": [
                {self._text(token): finite_logprob(x) for token, x in one.top} for _, one in reported
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._llm.target.text.piece(token).decode(errors="replace")

    def _token(self, token: int, logprob: float) -> Json:
        piece = self._llm.target.text.piece(token)
        return {
            "token": piece.decode(errors="replace"),
            "logprob": finite_logprob(logprob),
            "bytes": list(piece),
        }

    def _usage(self, choices: Sequence[ChoiceState]) -> Json:
        """A prompt counts once, however many answers it has."""
        ends = finished_choices(choices)
        firsts = ends[:: self._n]
        prompt, written = sum(end.n_prompt for end in firsts), sum(end.n_tokens for end in ends)
        cached = sum(end.n_cached for end in firsts)
        return {**usage_counts(prompt, written), "prompt_tokens_details": {"cached_tokens": cached}}


def usage_counts(prompt: int, written: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def finished_choices(choices: Sequence[ChoiceState]) -> list[Finish]:
    return [choice.end for choice in choices if choice.end is not None]


def draft_counts(ends: Sequence[Finish]) -> Json:
    """By drafter."""
    tokens: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for end in ends:
        for name, source in end.stats.by_source.items():
            tokens[name] += source.drafted
            accepted[name] += source.accepted
    return {
        "drafted": dict(tokens),
        "accepted": dict(accepted),
        "steps": sum(end.stats.steps for end in ends),
    }


def finish_reason(end: Finish, calls: int) -> str:
    """calls: of tools, in the answer."""
    if end.is_truncated:
        return "length"
    return "tool_calls" if calls else "stop"


def timings(ends: Sequence[Finish]) -> Json:
    """As llama-server has them; of several answers the sums."""
    read = sum(end.n_prompt - end.n_cached for end in ends)
    reading = sum(max(0.0, end.first_token_seconds - end.queue_seconds) for end in ends)
    written, writing = sum(end.n_tokens for end in ends), sum(end.decode_seconds for end in ends)
    after = sum(max(0, end.n_tokens - 1) for end in ends)
    return {
        "cache_n": sum(end.n_cached for end in ends),
        "prompt_n": read,
        "prompt_ms": 1000 * reading,
        "prompt_per_second": read / reading if reading else 0.0,
        "predicted_n": written,
        "predicted_ms": 1000 * writing,
        "predicted_per_second": after / writing if writing else 0.0,
        "draft_n": sum(end.stats.drafted for end in ends),
        "draft_n_accepted": sum(end.stats.accepted for end in ends),
    }


def finite_logprob(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB


def openai_error(message: str, kind: str, code: str | None = None, param: str | None = None) -> Json:
    """OpenAI's error. Half characters, which may come back in a message, cannot be sent."""
    clean = message.encode("utf-8", "replace").decode()
    return {"error": {"message": clean, "type": kind, "param": param, "code": code}}


def log_fields(end: Finish | None) -> Mapping[str, Any]:
    """What a log says of an answer; nothing of its text."""
    if end is None:
        return {}
    return {
        "reason": end.reason or ("cancelled" if end.error is None else type(end.error).__name__),
        "prompt": end.n_prompt,
        "cached": end.n_cached,
        "tokens": end.n_tokens,
        "drafted": end.stats.drafted,
        "accepted": end.stats.accepted,
        "waited": round(end.queue_seconds, 4),
        "first": round(end.first_token_seconds, 4),
        "rest": round(end.decode_seconds, 4),
    }
