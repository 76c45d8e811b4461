"""Validated replies of llama-server and of servers with OpenAI's API, in which any field may be missing or
wrong.

pydantic's ValidationError is a ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, Field, model_validator

from paceline.bench.system import BenchAnswer

MAX_COUNT = 10**9  # tokens, steps, token ids
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Milliseconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class Timings(BaseModel):
    """The `timings` at the end of an answer of llama-server, which omits zeros."""

    predicted_n: Count = 0
    predicted_ms: Milliseconds = 0.0
    draft_n: Count | None = None
    draft_n_accepted: Count = 0

    @model_validator(mode="after")
    def _check_accepted(self) -> Timings:
        require_part(self.draft_n_accepted, self.draft_n or 0)
        return self

    @property
    def own_speed(self) -> float | None:
        """Tokens/s of decoding. The server's decoding time starts after the first token, which it counts:
        builds before 2026 divide one by the other and report too high speeds."""
        if self.predicted_n < 2 or self.predicted_ms <= 0.0:
            return None
        return (self.predicted_n - 1) / self.predicted_ms * 1e3

    def decoding(self, first: float, last: float, n_first: int) -> tuple[float, int]:
        """Return (seconds of decoding, tokens before it).

        first, last: arrival of the first tokens, n_first together, and of the last ones. On a busy machine
        the first may arrive late. Decoding took at least the server's time, which begins after one token."""
        own = min(self.predicted_ms / 1e3, last)
        return (own, 1) if own > last - first else (last - first, n_first)


class CompletionReply(BaseModel):
    """A message of llama-server's /completion stream."""

    content: str = ""
    tokens: tuple[Count, ...] = ()
    stop: bool = False
    tokens_predicted: Count | None = None


class CompletionEnd(BaseModel):
    """The last message of that stream."""

    tokens_predicted: Count
    tokens_evaluated: Count
    stop_type: str = ""
    timings: Timings


class Choice(BaseModel):
    text: str | None = None
    token_ids: tuple[Count, ...] | None = None


class Usage(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count


class SpeculativeMetrics(BaseModel):
    """vLLM's counts of one request, with --per-request-spec-decode-metrics."""

    num_draft_tokens: Count
    num_accepted_draft_tokens: Count

    @model_validator(mode="after")
    def _check_accepted(self) -> SpeculativeMetrics:
        require_part(self.num_accepted_draft_tokens, self.num_draft_tokens)
        return self


class RequestMetrics(BaseModel):
    speculative_decoding: SpeculativeMetrics | None = None


class Chunk(BaseModel):
    """A message of a /v1/completions stream."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    metrics: RequestMetrics | None = None


class ServedModel(BaseModel):
    id: str | None = None


class ModelList(BaseModel):
    data: tuple[ServedModel, ...] | None = None


def require_part(part: int, whole: int) -> None:
    if part > whole:
        raise ValueError(f"{part} accepted of {whole} drafted tokens")


def build_answer(
    pieces: Sequence[tuple[float, str, tuple[int, ...]]],
    n_tokens: int,
    n_prompt: int,
    timings: Timings,
    n_first: int,
    last: float,
) -> BenchAnswer:
    """Return the answer of a stream.

    pieces: arrival, text and token ids. n_first: number of tokens in the first piece. last: arrival of the
    last token."""
    tokens = tuple(token for _, _, ids in pieces for token in ids)
    first = pieces[0][0] if pieces else last
    seconds, before = timings.decoding(first, last, min(n_first, n_tokens))
    return BenchAnswer(
        text="".join(text for _, text, _ in pieces),
        tokens=tokens if len(tokens) == n_tokens else None,
        n_tokens=n_tokens,
        n_prompt=n_prompt,
        first=last - seconds,
        seconds=last,
        decoded=n_tokens - before,
        decoding=seconds,
        own_speed=timings.own_speed,
    )


def with_drafts(answer: BenchAnswer, n_drafted: int, n_accepted: int) -> BenchAnswer:
    """Add the server's draft counts of a request."""
    return replace(
        answer,
        steps=max(0, answer.n_tokens - n_accepted - 1),  # the first token comes from the prefill
        drafted=n_drafted,
        accepted=n_accepted,
        # No server reports the number of steps with a rejection.
        rejected=0 if n_drafted == n_accepted else None,
    )
