"""Any server with OpenAI's completions API as a System: vLLM, SGLang, llama-server and others."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from dataclasses import replace
from time import sleep
from typing import Any

from pydantic import ValidationError

from paceline.bench.baselines.endpoint import Endpoint, Event, complaint
from paceline.bench.baselines.prometheus import DraftCounts, drafts_between, read_metrics
from paceline.bench.baselines.replies import Chunk, ModelList, Timings, describe
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.speculative.errors import MissingExtraError, PeerError, UsageError
from paceline.speculative.printable import shortened
from paceline.speculative.sampling import Sampling

COMPLETIONS, MODELS, METRICS = "/v1/completions", "/v1/models", "/metrics"
LOOKS, SETTLE = 20, 0.05  # at counters that may lag, and the seconds between two


class OpenAIServer:
    """A server that somebody else runs, and that is best used by nobody else meanwhile.

    url: http://HOST:PORT, with or without /v1; `#MODEL` after it chooses among several. key: OPENAI_API_KEY
    of the environment if None. timeout: seconds of silence. Prompts are text, to which it adds its BOS.
    Raises PeerError where nobody answers, UsageError for an address or a model that cannot be used.
    """

    def __init__(self, url: str, *, name: str, key: str | None = None, timeout: float = 120.0) -> None:
        self.name = name
        address, _, model = url.partition("#")
        key = os.environ.get("OPENAI_API_KEY") if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._endpoint = Endpoint(name, address.rstrip("/").removesuffix("/v1"), timeout, headers)
        self.model = model or self._only_model()
        self._extended = self._takes_extensions()
        self._counts = self._counters() is not None

    def _only_model(self) -> str:
        status, said = self._endpoint.get(MODELS)
        data = self._endpoint.parsed(said)
        try:
            models = [one.id for one in ModelList.model_validate(data).data or () if one.id]
        except ValidationError as error:
            why = describe(error)
            raise PeerError(f"{self.name}: its {MODELS} is not what OpenAI's API says: {why}") from error
        if status != 200 or not models:
            raise PeerError(f"{self.name}: {MODELS} names no model: {complaint(data)} (HTTP {status})")
        if len(models) > 1:
            raise UsageError(f"{self.name} serves {shortened(', '.join(models))}: choose one with URL#MODEL")
        return models[0]

    def _takes_extensions(self) -> bool:
        """Whether it takes settings that OpenAI's own API lacks; servers refuse a request over an
        unknown one, or pass over it. Also finds out, before anything is measured, whether it answers at
        all."""
        ask = BenchRequest("a", (), 1)
        for extended in (True, False):
            status, said = self._endpoint.post(COMPLETIONS, self._request(ask, extended, stream=False))
            if status == 200:
                return extended
            if status not in (400, 422):
                break
        raise PeerError(f"{self.name} refused: {complaint(said)} (HTTP {status})")

    def _request(self, ask: BenchRequest, extended: bool, *, stream: bool = True) -> dict[str, Any]:
        sampling = ask.sampling
        if sampling.typical_p < 1.0 or sampling.xtc_probability > 0.0:
            raise UsageError(f"{self.name}: OpenAI's API has neither typical-p nor XTC")
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "seed": ask.seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            # Between -100, which forbids a token, and 100.
            "logit_bias": {str(t): max(-100.0, min(b, 100.0)) for t, b in sampling.logit_bias.items()},
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | self._extensions(sampling, ask.ignore_eos) if extended else body

    def _extensions(self, sampling: Sampling, ignore_eos: bool) -> dict[str, Any]:
        return {
            "ignore_eos": ignore_eos,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repeat_penalty,  # vLLM's and SGLang's word
            "repeat_penalty": sampling.repeat_penalty,  # llama-server's
            "return_token_ids": True,
            # From an empty cache: the first is llama-server's way, the second vLLM's.
            "cache_prompt": False,
            "cache_salt": uuid.uuid4().hex,
        }

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        """Answer from an empty cache where a request can say so: SGLang needs --disable-radix-cache."""
        before = self._counters() if self._counts else None
        events = self._endpoint.stream(COMPLETIONS, self._request(ask, self._extended))
        try:
            answer = self._answered(events)
        except ValidationError as error:
            why = describe(error)
            raise PeerError(f"{self.name}: its answer is not what OpenAI's API says: {why}") from error
        if before is None or answer.drafted is not None:
            return answer
        drafts = self._drafts_since(before, answer.n_tokens)
        return answer if drafts is None else drafted(answer, drafts.drafted, drafts.accepted)

    def _answered(self, events: Sequence[Event]) -> BenchAnswer:
        chunks = [Chunk.model_validate(event.data) for event in events]
        pieces = [
            (event.seconds, choice.text or "", choice.token_ids or ())
            for event, chunk in zip(events, chunks, strict=True)
            for choice in chunk.choices or ()
            if choice.token_ids or choice.text
        ]
        usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage is not None), None)
        if not pieces or usage is None:
            raise PeerError(f"{self.name} ended its answer without saying how many tokens it has")
        first, last = pieces[0][0], pieces[-1][0]
        n_tokens = usage.completion_tokens
        tokens = tuple(token for _, _, ids in pieces for token in ids)
        timings = next((c.timings for c in reversed(chunks) if c.timings is not None), Timings())
        # A chunk of a server that sends no token ids counts as one token.
        together = sum(len(ids) or 1 for seconds, _, ids in pieces if seconds == first)
        rest, n_first = timings.decoding(first, last, min(together, n_tokens))
        answer = BenchAnswer(
            text="".join(piece for _, piece, _ in pieces),
            tokens=tokens if len(tokens) == n_tokens else None,
            n_tokens=n_tokens,
            n_prompt=usage.prompt_tokens,
            first=last - rest,
            seconds=last,
            decoded=n_tokens - n_first,
            decoding=rest,
            own_speed=timings.own_speed,
        )
        return with_drafts(answer, chunks)

    def _counters(self) -> dict[str, float] | None:
        status, said = self._endpoint.get(METRICS)
        if status != 200:
            return None
        try:
            return read_metrics(self.name, said.decode(errors="replace"))
        except MissingExtraError:  # its speed can be told without them
            return None

    def _drafts_since(self, before: dict[str, float], n_tokens: int) -> DraftCounts | None:
        """Counters may lag behind the answer: they are read until they rest."""
        found = None
        for _ in range(LOOKS):
            last, found = found, drafts_between(before, self._counters() or {}, n_tokens)
            if found == last:
                break
            sleep(SETTLE)
        return found

    def memory(self) -> int | None:
        """It may run anywhere."""
        return None

    def close(self) -> None:
        """The server is not ours."""


def with_drafts(answer: BenchAnswer, chunks: Sequence[Chunk]) -> BenchAnswer:
    """Add the server's own counts of this request's drafts: llama-server's timings, or vLLM's metrics (with
    --per-request-spec-decode-metrics)."""
    for chunk in reversed(chunks):
        timings = chunk.timings
        metrics = None if chunk.metrics is None else chunk.metrics.speculative_decoding
        if timings is not None and timings.draft_n is not None:
            return drafted(answer, timings.draft_n, timings.draft_n_accepted)
        if metrics is not None:
            found = drafted(answer, metrics.num_draft_tokens, metrics.num_accepted_draft_tokens)
            return replace(found, rejected=metrics.rejected)
    return answer


def drafted(answer: BenchAnswer, n_drafted: int, n_accepted: int) -> BenchAnswer:
    return replace(
        answer,
        steps=max(0, answer.n_tokens - n_accepted - 1),  # the first token is the prompt's own
        drafted=n_drafted,
        accepted=n_accepted,
        rejected=0 if n_drafted == n_accepted else None,
    )
