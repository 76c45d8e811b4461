"""HTTP responses: OpenAI's objects, with llama-server's `timings` and counts of drafted tokens."""

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

MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have

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
    """The response to one request. n: answers to each prompt. report: name the drafter of each part."""

    def __init__(
        self, llm: LLM, model: str, chat: bool, n: int, request: ParsedRequest, *, report: bool
    ) -> None:
        self._llm, self._n, self._report, self._chat = llm, n, report, chat
        self._logprobs, self._calls = request.requests[0].logprobs is not None, request.calls
        self._readers: dict[int, ToolDeltaReader] = {}
        name = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._base = {"id": name, "created": int(time.time()), "model": model}
        self._offsets: Counter[int] = Counter()

    def role_chunks(self, n: int) -> list[Json]:
        """Return a chat's first chunks, which hold the role."""
        role = {"role": "assistant", "content": ""}
        return [self._chunk([self._streamed(at, role)]) for at in range(n)] if self._chat else []

    def chunks(self, choices: Sequence[ChoiceState], index: int, update: StepOutput) -> list[Json]:
        """Return the chunks of one output, which may be none. The last chunk of all has the timings."""
        out = []
        reader = self._readers.setdefault(index, ToolDeltaReader(self._calls))
        logprobs = self._logprobs_json(index, update)
        deltas = reader.read(update)
        if not deltas and logprobs is not None and update.tokens:
            deltas = [ChunkDelta({"content": ""}, [])]  # the text may be held back, log-probabilities are not
        for one in deltas:
            delta: Any = one.delta if self._chat else one.delta["content"]
            chunk = self._chunk([self._streamed(index, delta, logprobs)])
            logprobs = None  # only in the first chunk
            if self._report:
                chunk["speculative"] = {"parts": [list(part) for part in one.parts]}
            out.append(chunk)
        if update.finish is not None:
            reason = finish_reason(update.finish, reader.calls)
            last = self._chunk([self._streamed(index, {} if self._chat else "", None, reason)])
            if all(choice.end is not None for choice in choices):
                ends = finished_choices(choices)
                last["timings"] = timings(ends)
                if self._report:
                    last["speculative"] = draft_counts(ends)
            out.append(last)
        return out

    def usage(self, choices: Sequence[ChoiceState]) -> Json:
        """Return the chunk with the usage, which follows the last one."""
        return self._chunk([]) | {"usage": self._usage(choices)}

    def usage_so_far(self, requests: Sequence[GenerationRequest], choices: Sequence[ChoiceState]) -> Json:
        prompt = sum(len(request.prompt) for request in requests[:: self._n])
        return usage_counts(prompt, sum(len(choice.tokens) for choice in choices))

    def full_response(self, choices: Sequence[ChoiceState]) -> Json:
        ends = finished_choices(choices)
        out = {
            **self._base,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._finished(choice) for choice in choices],
            "usage": self._usage(choices),
            "timings": timings(ends),
        }
        if self._report:
            parts = [[list(part) for part in choice.parts] for choice in choices]
            out["speculative"] = {"parts": parts, **draft_counts(ends)}
        return out

    def _finished(self, choice: ChoiceState) -> Json:
        assert choice.end is not None
        tokens, logprobs = tuple(choice.tokens), tuple(choice.logprobs)
        out: Json = {
            "index": choice.index,
            "logprobs": self._logprobs_json(choice.index, StepOutput(tokens=tokens, logprobs=logprobs)),
            "finish_reason": finish_reason(choice.end, 0),
        }
        if not self._chat:
            return {**out, "text": choice.text}
        message: Json = {"role": "assistant", "content": choice.text}
        if self._calls is not None:
            text, cut = self._calls.answer_prefix + choice.text, choice.end.is_truncated
            parsed = parse_tool_calls(self._calls.format, self._calls.tools, text, cut=cut)
            message = parsed.openai()
            out["finish_reason"] = finish_reason(choice.end, len(parsed.calls))
        return {**out, "message": {**message, "refusal": None}}

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._base, "object": kind, "choices": choices}

    def _streamed(self, index: int, delta: Any, logprobs: Any = None, reason: str | None = None) -> Json:
        field = "delta" if self._chat else "text"
        return {"index": index, field: delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_json(self, index: int, update: StepOutput) -> Json | None:
        if not self._logprobs:
            return None
        pairs = list(zip(update.tokens, update.logprobs, strict=True))
        if self._chat:
            content = [
                {**self._token(token, one.logprob), "top_logprobs": [self._token(*top) for top in one.top]}
                for token, one in pairs
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(token) for token in update.tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [finite_logprob(one.logprob) for one in update.logprobs],
            "top_logprobs": [
                {self._text(token): finite_logprob(x) for token, x in one.top} for one in update.logprobs
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
        """Return the usage of all answers. A prompt counts once, however many answers it has."""
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
    """Return the drafted and the accepted tokens by drafter, and the steps."""
    drafted: Counter[str] = Counter()
    accepted: Counter[str] = Counter()
    for end in ends:
        for name, source in end.stats.by_source.items():
            drafted[name] += source.drafted
            accepted[name] += source.accepted
    return {
        "drafted": dict(drafted),
        "accepted": dict(accepted),
        "steps": sum(end.stats.steps for end in ends),
    }


def finish_reason(end: Finish, calls: int) -> str:
    """Return OpenAI's finish reason of an answer with so many tool calls."""
    if end.is_truncated:
        return "length"
    return "tool_calls" if calls else "stop"


def timings(ends: Sequence[Finish]) -> Json:
    """Return llama-server's timings, summed over the answers."""
    n_prefill = sum(end.n_prompt - end.n_cached for end in ends)
    prefill_seconds = sum(max(0.0, end.first_token_seconds - end.queue_seconds) for end in ends)
    n_tokens, decode_seconds = sum(end.n_tokens for end in ends), sum(end.decode_seconds for end in ends)
    n_after_first = sum(max(0, end.n_tokens - 1) for end in ends)
    return {
        "cache_n": sum(end.n_cached for end in ends),
        "prompt_n": n_prefill,
        "prompt_ms": 1000 * prefill_seconds,
        "prompt_per_second": n_prefill / prefill_seconds if prefill_seconds else 0.0,
        "predicted_n": n_tokens,
        "predicted_ms": 1000 * decode_seconds,
        "predicted_per_second": n_after_first / decode_seconds if decode_seconds else 0.0,
        "draft_n": sum(end.stats.drafted for end in ends),
        "draft_n_accepted": sum(end.stats.accepted for end in ends),
    }


def finite_logprob(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else MIN_LOGPROB


def openai_error(message: str, kind: str, code: str | None = None, param: str | None = None) -> Json:
    """Return OpenAI's error object. Lone surrogates, which a message may quote, are replaced."""
    clean = message.encode("utf-8", "replace").decode()
    return {"error": {"message": clean, "type": kind, "param": param, "code": code}}


def log_fields(end: Finish) -> Mapping[str, Any]:
    """Return the fields of an answer in the log, which has nothing of the text."""
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
