"""Validated replies of llama-server and of servers with OpenAI's API, in which any field may be missing or
wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import AliasChoices, AliasPath, BaseModel, Field, model_validator

from paceline.bench.system import BenchAnswer

MAX_COUNT = 10**9  # tokens, steps, token ids
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Milliseconds = Annotated[float, Field(ge=0.0, le=1e12, allow_inf_nan=False)]


class DraftCounts(BaseModel):
    """Draft counts of a request, with the names of llama-server and of vLLM."""

    drafted: Count | None = Field(None, validation_alias=AliasChoices("draft_n", "num_draft_tokens"))
    accepted: Count = Field(0, validation_alias=AliasChoices("draft_n_accepted", "num_accepted_draft_tokens"))

    @model_validator(mode="after")
    def _check_accepted(self) -> DraftCounts:
        if self.accepted > (self.drafted or 0):
            raise ValueError(f"{self.accepted} accepted of {self.drafted or 0} drafted tokens")
        return self


class Timings(DraftCounts):
    """The `timings` at the end of an answer of llama-server, which omits zeros."""

    predicted_n: Count = 0
    predicted_ms: Milliseconds = 0.0

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


class Model(BaseModel):
    id: Annotated[str, Field(min_length=1)]


class ModelList(BaseModel):
    """The answer of /v1/models."""

    data: Annotated[tuple[Model, ...], Field(min_length=1)]


class Choice(BaseModel):
    text: str | None = None
    token_ids: tuple[Count, ...] | None = None


class Usage(BaseModel):
    prompt_tokens: Count
    completion_tokens: Count


class Chunk(BaseModel):
    """A message of a /v1/completions stream. counts: vLLM's, with --per-request-spec-decode-metrics."""

    choices: tuple[Choice, ...] | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    counts: DraftCounts | None = Field(None, validation_alias=AliasPath("metrics", "speculative_decoding"))


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
        text="".join(text for _, text, _ in pieces), tokens=tokens if len(tokens) == n_tokens else None,
        n_tokens=n_tokens, n_prompt=n_prompt, first=last - seconds, seconds=last,
        decoded=n_tokens - before, decoding=seconds, own_speed=timings.own_speed,
    )  # fmt: skip


def with_drafts(answer: BenchAnswer, counts: DraftCounts) -> BenchAnswer:
    steps = max(0, answer.n_tokens - counts.accepted - 1)  # the first token comes from the prefill
    drafted = counts.drafted or 0
    # No server reports the number of steps with a rejection.
    rejected = 0 if drafted == counts.accepted else None
    return replace(answer, steps=steps, drafted=drafted, accepted=counts.accepted, rejected=rejected)
