"""llama-server's own completions: https://github.com/ggml-org/llama.cpp/tree/master/tools/server"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from paceline.request_handle import StepOutput
from paceline.server import schemas
from paceline.server.apis.answer import AnswerState, Event, Writer, finite_logprob
from paceline.server.apis.parts import Notes, validated
from paceline.server.schemas import Json, Limit, Objects, Prompts, Text
from paceline.speculative.stats import Logprob

SHARED = set(schemas.SamplingRequest.model_fields) | {"prompt"}
STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit", "context": "limit"}


class LlamaRequest(schemas.SamplingRequest):
    """POST /completion"""

    prompt: Prompts
    n_predict: Limit | None = None
    n_probs: Annotated[int, Field(ge=0, le=1024)] = 0
    return_tokens: bool = False
    response_fields: list[Text] | None = None


class InfillRequest(LlamaRequest):
    """POST /infill: what is between a prefix and a suffix. prompt: the beginning of it."""

    prompt: Text = ""
    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Objects = Field(default_factory=list)


def to_completion(body: LlamaRequest, _notes: Notes) -> schemas.CompletionRequest:
    """Return the completion that a request of llama-server's asks for."""
    fields: Json = {name: getattr(body, name) for name in body.model_fields_set if name in SHARED}
    most = body.max_tokens if body.n_predict is None else body.n_predict
    # 0 only reads the prompt in llama-server; -1 is a random seed.
    fields |= {"max_tokens": 1 if most == 0 else most, "logprobs": body.n_probs or None}
    fields["seed"] = None if body.seed == -1 else body.seed
    if not isinstance(body, InfillRequest):
        return validated(schemas.CompletionRequest, fields)
    fields |= {"prompt": body.input_prefix + body.prompt, "suffix": body.input_suffix}
    return validated(schemas.FimRequest, fields | {"fim_files": body.input_extra})


class LlamaWriter(Writer):
    """Completions, each an object of its own. A prompt alone has no list."""

    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        answer = self._answers.all[index]
        if self._body.return_progress:
            for progress in self._answers.progress(index, update):
                yield "", self._part(index, "", [], []) | {"prompt_progress": progress}
        if update.tokens:
            times = {"timings": self._answers.timings()} if self._body.timings_per_token else {}
            yield "", self._part(index, update.text, update.tokens, update.logprobs) | times
        if update.finish is not None:
            yield "", self._ended(index, answer) | {"content": "", "tokens": []}

    def full(self) -> Any:
        made = list[Json]()
        for at, answer in enumerate(self._answers.all):
            tokens = answer.handle.tokens
            made.append(self._ended(at, answer) | self._probabilities(tokens, answer.handle.logprobs))
        if fields := self._body.response_fields:
            made = [{k: v for k in fields if (v := _at(whole, k)) is not None} for whole in made]
        return made if len(made) > 1 else made[0]

    def _part(self, index: int, text: str, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Json:
        counts = {"tokens_predicted": self._answers.n_tokens, "tokens_evaluated": self._answers.n_prompt}
        new = {"index": index, "content": text, "tokens": list(tokens), "stop": False, "id_slot": -1}
        return {**new, **counts, **self._probabilities(tokens, logprobs)}

    def _ended(self, index: int, answer: AnswerState) -> Json:
        handle, end, body = answer.handle, answer.finish, self._body
        given, sampling = handle.request, asdict(handle.request.sampling)
        del sampling["dry_breakers"]
        biases = given.sampling.logit_bias.items()
        sampling["logit_bias"] = [{"token": token, "bias": finite_logprob(bias)} for token, bias in biases]
        settings = {"n_predict": given.max_tokens, "seed": given.seed, "stop": list(given.stop), **sampling}
        return {
            "index": index,
            "content": handle.text,
            "tokens": list(handle.tokens) if body.return_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": end.n_tokens,
            "tokens_evaluated": end.n_prompt,
            "tokens_cached": end.n_prompt + end.n_tokens,
            "generation_settings": settings,
            "prompt": self._answers.prompt_text(index),
            "has_new_line": "\n" in handle.text,
            "truncated": end.reason == "context",
            "stop_type": STOP_TYPES.get(end.reason or "", "none"),
            "stopping_word": handle.stop_string or "",
            "timings": self._answers.timings(),
        }

    def _probabilities(self, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Json:
        if not self._body.n_probs:
            return {}

        def one(token: int, logprob: float) -> Json:
            return {"id": token, **self._answers.token_json(token, logprob)}

        return {
            "completion_probabilities": [
                {**one(token, it.logprob), "top_logprobs": [one(*top) for top in it.top]}
                for token, it in zip(tokens, logprobs, strict=True)
            ]
        }


def _at(whole: Json, path: str) -> Any:
    """Return the value at a path such as generation_settings/seed."""
    value: Any = whole
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
