"""Any server with OpenAI's completions API as a System: vLLM, SGLang, llama-server and others."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from time import sleep
from typing import Any

from paceline.core.errors import PeerError, UsageError
from paceline.core.printable import shortened
from paceline.core.sampling import Sampling
from paceline.lab.peers.endpoint import Endpoint, Event, complaint
from paceline.lab.peers.fields import MOST, count, counts, object_of, objects, text
from paceline.lab.peers.streaming import StreamingServer, decoding, drafts_of, own_speed, with_drafts
from paceline.lab.system import Answer, Ask

COMPLETIONS, MODELS, METRICS = "/v1/completions", "/v1/models", "/metrics"
NUMBER = r"\d{1,20}(?:\.\d{1,20})?(?:e\+?\d{1,2})?"
COUNTERS = {  # vLLM's names, which llama-server took over
    name: rf"(?m)^(?:vllm|llamacpp):spec_decode_num_{name}_tokens_total(?:\{{[^}}\n]*\}})? ({NUMBER})\s*$"
    for name in ("draft", "accepted")
}
LOOKS, SETTLE = 20, 0.05  # at counters that may lag, and the seconds between two


class OpenAI(StreamingServer):
    """A server that somebody else runs, and that is best used by nobody else meanwhile.

    url: http://HOST:PORT, with or without /v1; `#MODEL` after it chooses among several. key: OPENAI_API_KEY
    of the environment if None. timeout: seconds of silence. Prompts are text, to which it adds its BOS.
    Raises PeerError where nobody answers, UsageError for an address or a model that cannot be used.
    """

    path, hello, api = COMPLETIONS, MODELS, "OpenAI's API"

    def __init__(self, url: str, *, name: str, key: str | None = None, timeout: float = 120.0) -> None:
        address, _, model = url.partition("#")
        key = os.environ.get("OPENAI_API_KEY") if key is None else key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(name, Endpoint(name, address.rstrip("/").removesuffix("/v1"), timeout, headers))
        self.model = model or self._only_model()
        self._extended = self._takes_extensions()

    def _only_model(self) -> str:
        status, said = self._endpoint.get(MODELS)
        data = self._endpoint.parsed(said)
        try:
            models = [name for one in objects(data, "data") if (name := text(one, "id"))]
        except ValueError as error:
            raise PeerError(f"{self.name}: its {MODELS} is not what OpenAI's API says: {error}") from error
        if status != 200 or not models:
            raise PeerError(f"{self.name}: {MODELS} names no model: {complaint(data)} (HTTP {status})")
        if len(models) > 1:
            raise UsageError(f"{self.name} serves {shortened(', '.join(models))}: choose one with URL#MODEL")
        return models[0]

    def _takes_extensions(self) -> bool:
        """Whether it takes settings that OpenAI's own API has not; servers refuse a request over an unknown
        one, or pass over it. Also finds out, before anything is measured, whether it answers at all."""
        ask = Ask("a", (), 1)
        for extended in (True, False):
            status, said = self._endpoint.post(COMPLETIONS, self._request(ask, extended, stream=False))
            if status == 200:
                return extended
            if status not in (400, 422):
                break
        raise PeerError(f"{self.name} refused: {complaint(said)} (HTTP {status})")

    def _request(self, ask: Ask, extended: bool, *, stream: bool = True) -> dict[str, Any]:
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

    def body(self, ask: Ask) -> dict[str, Any]:
        return self._request(ask, self._extended)

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Asks are answered from an empty cache where the server can be told so: SGLang cannot, and needs
        --disable-radix-cache. Drafts are the request's own, or, of one request alone, what the server's
        counters have grown by."""
        before = self._counters() if len(asks) == 1 else None
        answers = super().answer(asks)
        if before is not None and answers[0].drafted is None:
            drafted, accepted = (new - old for new, old in zip(self._at_rest(), before, strict=True))
            if 0 <= accepted <= drafted:
                answers = [with_drafts(answers[0], drafted, accepted)]
        return answers

    def _answered(self, ask: Ask, events: Sequence[Event]) -> Answer:
        choices = [(event, choice) for event in events for choice in objects(event.data, "choices")]
        said = [
            (event.seconds, text(choice, "text"), ids)
            for event, choice in choices
            if (ids := counts(choice, "token_ids")) or choice.get("text")
        ]
        usage = next((use for e in reversed(events) if (use := object_of(e.data, "usage"))), None)
        if not said or usage is None:
            raise PeerError(f"{self.name} ended its answer without saying how many tokens it has")
        first, last = said[0][0], said[-1][0]
        n_tokens = count(usage, "completion_tokens")
        tokens = tuple(token for _, _, ids in said for token in ids)
        timings = next((object_of(e.data, "timings") for e in reversed(events) if "timings" in e.data), None)
        # A chunk of a server that tells no token ids is taken for one token.
        together = sum(len(ids) or 1 for seconds, _, ids in said if seconds == first)
        rest, n_first = decoding(timings or {}, first, last, min(together, n_tokens))
        answer = Answer(
            text="".join(piece for _, piece, _ in said),
            tokens=tokens if len(tokens) == n_tokens else None,
            n_tokens=n_tokens,
            n_prompt=count(usage, "prompt_tokens"),
            first=last - rest,
            seconds=last,
            decoded=n_tokens - n_first,
            decoding=rest,
            own_speed=None if timings is None else own_speed(timings),
        )
        if timings is not None and "draft_n" in timings:
            return with_drafts(answer, *drafts_of(timings))
        metrics = next((found for e in reversed(events) if (found := object_of(e.data, "metrics"))), {})
        if told := object_of(metrics, "speculative_decoding"):  # vLLM's --per-request-spec-decode-metrics
            n = count(told, "num_draft_tokens")
            return with_drafts(answer, n, count(told, "num_accepted_draft_tokens", most=n))
        return answer

    def _counters(self) -> tuple[int, int] | None:
        """Tokens drafted and accepted since the server started; None where it does not count them."""
        status, said = self._endpoint.get(METRICS)
        return counters(said.decode(errors="replace")) if status == 200 else None

    def _at_rest(self) -> tuple[int, int]:
        """Counters may lag behind the answer: they are read until they rest."""
        found = None
        for _ in range(LOOKS):
            last, found = found, self._counters()
            if found == last:
                break
            sleep(SETTLE)
        return found or (0, 0)

    def memory(self) -> int | None:
        """It may run anywhere."""
        return None

    def close(self) -> None:
        """The server is not ours."""


def counters(metrics: str) -> tuple[int, int] | None:
    """Tokens (drafted, accepted), over all engines of a server, of a text in Prometheus' format; None where
    they are not counted, or not in numbers."""
    found = {name: [float(n) for n in re.findall(pattern, metrics)] for name, pattern in COUNTERS.items()}
    sums = [sum(values) for values in found.values()]
    if not all(found.values()) or not all(0 <= n < MOST for n in sums):
        return None
    return int(sums[0]), int(sums[1])
