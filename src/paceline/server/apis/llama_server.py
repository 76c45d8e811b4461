"""llama-server's own completions: https://github.com/ggml-org/llama.cpp/tree/master/tools/server"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field

from paceline.request_handle import StepOutput
from paceline.server.apis.answer import Answers, AnswerState, Event, Writer, finite_logprob
from paceline.server.apis.parts import Notes, validated
from paceline.server.schemas import (
    MAX_ITEMS,
    CompletionRequest,
    FimRequest,
    Json,
    Limit,
    Prompts,
    SamplingRequest,
    Text,
)
from paceline.speculative.stats import Logprob

SHARED = set(SamplingRequest.model_fields) | {"prompt"}
STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit", "context": "limit"}


class LlamaRequest(SamplingRequest):
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
    input_extra: Annotated[list[Json], Field(max_length=MAX_ITEMS)] = Field(default_factory=list)


def to_completion(body: LlamaRequest, _notes: Notes) -> CompletionRequest:
    """Return the completion that a request of llama-server's asks for."""
    fields: Json = {name: getattr(body, name) for name in body.model_fields_set if name in SHARED}
    most = body.max_tokens if body.n_predict is None else body.n_predict
    # 0 only reads the prompt in llama-server; -1 is a random seed.
    fields |= {"max_tokens": 1 if most == 0 else most, "logprobs": body.n_probs or None}
    if body.seed == -1:
        fields["seed"] = None
    if not isinstance(body, InfillRequest):
        return validated(CompletionRequest, fields)
    fields |= {"prompt": body.input_prefix + body.prompt, "suffix": body.input_suffix}
    return validated(FimRequest, fields | {"fim_files": body.input_extra})


class LlamaWriter(Writer):
    """Completions, each an object of its own. A prompt alone has no list."""

    def __init__(self, answers: Answers, model: str, body: LlamaRequest) -> None:
        self._answers, self._model, self._body = answers, model, body
        self._is_list = len(answers.all) > 1

    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        answer = self._answers.all[index]
        if self._body.return_progress:
            for progress in self._answers.progress(index, update):
                yield "", self._part(index, "", [], []) | {"prompt_progress": progress}
        if update.tokens:
            times = {"timings": self._answers.timings()} if self._body.timings_per_token else {}
            yield "", self._part(index, update.text, update.tokens, update.logprobs) | times
        if update.finish is not None:
            last = self._whole(index, answer) | {"content": "", "tokens": []}
            last.pop("completion_probabilities", None)  # the parts have them
            yield "", last

    def full(self) -> Any:
        wholes = [self._whole(index, answer) for index, answer in enumerate(self._answers.all)]
        if fields := self._body.response_fields:
            wholes = [
                {name: _at(whole, name) for name in fields if _at(whole, name) is not None}
                for whole in wholes
            ]
        return wholes if self._is_list else wholes[0]

    def _part(self, index: int, text: str, tokens: Sequence[int], logprobs: Sequence[Logprob]) -> Json:
        out: Json = {"index": index, "content": text, "tokens": list(tokens), "stop": False, "id_slot": -1}
        out |= {"tokens_predicted": self._answers.n_tokens, "tokens_evaluated": self._answers.n_prompt}
        return out | self._probabilities(tokens, logprobs)

    def _whole(self, index: int, answer: AnswerState) -> Json:
        handle, end, body = answer.handle, answer.finish, self._body
        sampling = asdict(handle.request.sampling)
        del sampling["dry_breakers"]
        biases = handle.request.sampling.logit_bias.items()
        sampling["logit_bias"] = [{"token": token, "bias": finite_logprob(bias)} for token, bias in biases]
        settings = {"n_predict": handle.request.max_tokens, "seed": handle.request.seed, **sampling}
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
            "generation_settings": settings | {"stop": list(handle.request.stop)},
            "prompt": self._answers.prompt_text(index),
            "has_new_line": "\n" in handle.text,
            "truncated": end.reason == "context",
            "stop_type": STOP_TYPES.get(end.reason or "", "none"),
            "stopping_word": handle.stop_string or "",
            "timings": self._answers.timings(),
            **self._probabilities(handle.tokens, handle.logprobs),
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
