"""Any server with OpenAI's completions API as a System: vLLM, SGLang, llama-server and others."""

from __future__ import annotations

import os
import uuid
from typing import Annotated, Any

from pydantic import BaseModel, Field

from paceline.bench.baselines.endpoint import Endpoint
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import truncated

COMPLETIONS, MODELS = "/v1/completions", "/v1/models"


class Model(BaseModel):
    id: Annotated[str, Field(min_length=1)]


class ModelList(BaseModel):
    """The answer of /v1/models."""

    data: Annotated[tuple[Model, ...], Field(min_length=1)]


class OpenAIServer(System):
    """A running server, which should have no other load meanwhile and keeps running.
    url: http://HOST:PORT, with or without /v1, and `#MODEL` if there are several. timeout: seconds of
    silence. The key is OPENAI_API_KEY of the environment. Prompts are text, to which the server adds BOS.
    Raises BaselineError if the server does not answer, UsageError for an unusable address or model."""

    def __init__(self, url: str, *, name: str, timeout: float = 120.0) -> None:
        self.name = name
        address, _, model = url.partition("#")
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._endpoint = Endpoint(name, address.rstrip("/").removesuffix("/v1"), timeout, headers)
        self.model = model or self._only_model()
        self._extended = self._takes_extensions()

    def _only_model(self) -> str:
        _, data = self._endpoint.fetch(MODELS)
        models = [model.id for model in self._endpoint.validated(ModelList, data).data]
        if len(models) > 1:
            raise UsageError(f"{self.name} serves {truncated(', '.join(models))}: choose one with URL#MODEL")
        return models[0]

    def _takes_extensions(self) -> bool:
        """True if it accepts settings beyond OpenAI's API. It also tests the server before the bench."""
        probe = BenchRequest("a", (), 1)
        status, _ = self._endpoint.fetch(COMPLETIONS, self._body(probe, True), allowed=(400, 422))
        if status != 200:
            self._endpoint.fetch(COMPLETIONS, self._body(probe, False))
        return status == 200

    def _body(self, request: BenchRequest, extended: bool) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "seed": request.seed,
            "temperature": 0.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            # Between -100, which forbids a token, and 100.
            "logit_bias": {str(t): max(-100.0, min(b, 100.0)) for t, b in sampling.logit_bias.items()},
        }
        if not extended:
            return body
        return body | {
            "ignore_eos": True,
            "repetition_penalty": sampling.repeat_penalty,  # vLLM's and SGLang's word
            "repeat_penalty": sampling.repeat_penalty,  # llama-server's
            "return_token_ids": True,
            # For an empty cache: llama-server's field and vLLM's.
            "cache_prompt": False,
            "cache_salt": uuid.uuid4().hex,
        }

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer with an empty cache if the server supports that per request: SGLang needs
        --disable-radix-cache. vLLM reports draft counts with --per-request-spec-decode-metrics."""
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return self._endpoint.answer(COMPLETIONS, self._body(request, self._extended) | streamed)
