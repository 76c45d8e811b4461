"""HTTP responses: OpenAI's objects, with llama-server's `timings` and counts of drafted tokens."""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from paceline.api import LLM
from paceline.request_handle import Finish, RequestHandle, StepOutput
from paceline.server.convert import ParsedRequest
from paceline.server.schemas import ChatRequest, CompletionRequest
from paceline.speculative.stats import Logprob

MIN_LOGPROB = -9999.0  # stands for minus infinity, which JSON does not have

Json = dict[str, Any]


class ResponseBuilder:
    """The response to one request, made of the handles of its answers."""

    def __init__(
        self,
        llm: LLM,
        model: str,
        body: ChatRequest | CompletionRequest,
        request: ParsedRequest,
        handles: Sequence[RequestHandle],
    ) -> None:
        self._llm, self._n, self._handles = llm, body.n, handles
        self._chat = chat = isinstance(body, ChatRequest)
        self._report = body.speculative is not None and body.speculative.report
        self._logprobs = request.requests[0].logprobs is not None
        self._parsers = [request.new_parser() if request.new_parser else None for _ in handles]
        self._parts: list[list[tuple[str, str]]] = [[] for _ in handles]  # not yet in a chunk
        self._n_ended = 0
        name = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._base = {"id": name, "created": int(time.time()), "model": model}
        self._offsets: Counter[int] = Counter()

    def role_chunks(self) -> list[Json]:
        """Return a chat's first chunks, which hold the role."""
        role = {"role": "assistant", "content": ""}
        indices = range(len(self._handles)) if self._chat else ()
        return [self._chunk([self._streamed(at, role)]) for at in indices]

    def chunks(self, index: int, update: StepOutput) -> list[Json]:
        """Return the chunks of one output, which may be none. The last chunk of all has the timings."""
        out = []
        parser, end = self._parsers[index], update.finish
        self._parts[index] += update.parts
        deltas: list[Json] = [{"content": update.text}] if update.text else []
        if parser is not None:
            parsed = parser.feed(update.text)
            parsed += parser.finish(cut=end.is_truncated) if end is not None else []
            deltas = [delta.openai() for delta in parsed]
        logprobs = self._logprobs_json(index, update.tokens, update.logprobs)
        if not deltas and logprobs is not None and update.tokens:
            deltas = [{"content": ""}]  # the text may be held back, log-probabilities are not
        for delta in deltas:
            chunk = self._chunk([self._streamed(index, delta if self._chat else delta["content"], logprobs)])
            logprobs = None  # only in the first chunk
            if self._report:
                chunk["speculative"] = {"parts": self._parts[index]}
                self._parts[index] = []
            out.append(chunk)
        if end is not None:
            reason = finish_reason(end, 0 if parser is None else parser.n_calls)
            last = self._chunk([self._streamed(index, {} if self._chat else "", None, reason)])
            self._n_ended += 1
            if self._n_ended == len(self._handles):
                last["timings"] = timings(self._ends)
                if self._report:
                    last["speculative"] = draft_counts(self._ends)
            out.append(last)
        return out

    @property
    def _ends(self) -> list[Finish]:
        return [handle.finish for handle in self._handles if handle.finish is not None]

    def usage(self) -> Json:
        """Return the chunk with the usage, which follows the last one."""
        return self._chunk([]) | {"usage": self._usage()}

    def usage_so_far(self) -> Json:
        prompt = sum(len(handle.request.prompt) for handle in self._handles[:: self._n])
        return usage_counts(prompt, sum(len(handle.tokens) for handle in self._handles))

    def full_response(self) -> Json:
        out = {
            **self._base,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [self._finished(index, handle) for index, handle in enumerate(self._handles)],
            "usage": self._usage(),
            "timings": timings(self._ends),
        }
        if self._report:
            parts = [handle.parts for handle in self._handles]
            out["speculative"] = {"parts": parts, **draft_counts(self._ends)}
        return out

    def _finished(self, index: int, handle: RequestHandle) -> Json:
        assert handle.finish is not None
        message: Json = {"role": "assistant", "content": handle.text}
        n_calls = 0
        if (parser := self._parsers[index]) is not None:
            parsed = parser.parse(handle.text, cut=handle.finish.is_truncated)
            message, n_calls = parsed.openai(), parser.n_calls
        return {
            "index": index,
            "logprobs": self._logprobs_json(index, handle.tokens, handle.logprobs),
            "finish_reason": finish_reason(handle.finish, n_calls),
            **({"message": {**message, "refusal": None}} if self._chat else {"text": handle.text}),
        }

    def _chunk(self, choices: list[Json]) -> Json:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._base, "object": kind, "choices": choices}

    def _streamed(self, index: int, delta: Any, logprobs: Any = None, reason: str | None = None) -> Json:
        field = "delta" if self._chat else "text"
        return {"index": index, field: delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs_json(self, index: int, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Json | None:
        if not self._logprobs:
            return None
        if self._chat:
            content = [
                {**self._token(token, one.logprob), "top_logprobs": [self._token(*top) for top in one.top]}
                for token, one in zip(tokens, logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        texts = [self._text(token) for token in tokens]
        offsets = list(accumulate(map(len, texts), initial=self._offsets[index]))
        self._offsets[index] = offsets.pop()
        return {
            "tokens": texts,
            "token_logprobs": [finite_logprob(it.logprob) for it in logprobs],
            "top_logprobs": [
                {self._text(token): finite_logprob(x) for token, x in it.top} for it in logprobs
            ],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._llm.target.text.piece(token).decode(errors="replace")

    def _token(self, token: int, logprob: float) -> Json:
        piece = list(self._llm.target.text.piece(token))
        return {"token": self._text(token), "logprob": finite_logprob(logprob), "bytes": piece}

    def _usage(self) -> Json:
        """Return the usage of all answers. A prompt counts once, however many answers it has."""
        ends = self._ends
        firsts = ends[:: self._n]
        prompt, written = sum(end.n_prompt for end in firsts), sum(end.n_tokens for end in ends)
        cached = sum(end.n_cached for end in firsts)
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        if any(handle.request.prediction for handle in self._handles):
            drafted, accepted = (
                draft_counts(ends)[name].get("prediction", 0) for name in ("drafted", "accepted")
            )
            counts = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
            details["completion_tokens_details"] = counts
        return {**usage_counts(prompt, written), **details}


def usage_counts(prompt: int, written: int) -> Json:
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def draft_counts(ends: Sequence[Finish]) -> Json:
    """Return the drafted and the accepted tokens by drafter, and the steps."""
    drafted, accepted = Counter[str](), Counter[str]()
    for end in ends:
        for name, source in end.stats.by_source.items():
            drafted[name] += source.drafted
            accepted[name] += source.accepted
    steps = sum(end.stats.steps for end in ends)
    return {"drafted": dict(drafted), "accepted": dict(accepted), "steps": steps}


def finish_reason(end: Finish, calls: int) -> str:
    """Return OpenAI's finish reason of an answer with so many tool calls."""
    if end.is_truncated:
        return "length"
    return "tool_calls" if calls else "stop"


def timings(ends: Sequence[Finish]) -> Json:
    """Return llama-server's timings, summed over the answers."""
    n_prefill = sum(end.n_prompt - end.n_cached - end.n_skipped for end in ends)
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
