"""Ollama's chats and completions: https://github.com/ollama/ollama/blob/main/docs/api.md

Its streams are JSON objects, one a line, and times are in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from paceline.server import schemas
from paceline.server.apis.answer import BlockWriter, ContentBlock, Event
from paceline.server.apis.parts import Notes, call_arguments, chat_request, validated
from paceline.server.schemas import Body, Json, Name, Objects, Text
from paceline.speculative import validation as typed

# Options of the model's place in memory, which change no answer.
PLACES = frozenset({
    "low_vram", "main_gpu", "num_batch", "num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "use_mlock",
    "use_mmap",
})  # fmt: skip
OPTIONS = {"num_predict", "mirostat"}.union(schemas.SamplingRequest.model_fields).difference(
    ("model", "n", "stream", "stream_options", "speculative", "response_format", "prediction", "verbose")
)


class OllamaRequest(Body):
    """The common fields."""

    model: Name = ""
    stream: bool = True
    format: str | Json | None = None
    options: Json | None = None
    think: bool | str | None = None
    speculative: Any = None


class OllamaChatRequest(OllamaRequest):
    """POST /api/chat"""

    messages: Objects = Field(default_factory=list)
    tools: list[Json] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """POST /api/generate"""

    prompt: Text = ""
    suffix: Text | None = None
    system: Text | None = None
    images: list[Any] | None = None
    context: Any = None
    raw: bool = False


def chat_to_openai(body: OllamaChatRequest, notes: Notes) -> schemas.ChatRequest:
    """Return the chat that Ollama's request asks for."""
    messages = [_message(f"messages[{at}]", message) for at, message in enumerate(body.messages)]
    _name_calls(messages)
    return _chat(body, messages, notes, tools=body.tools or None)


def generate_to_openai(body: OllamaGenerateRequest, notes: Notes) -> schemas.OpenAiRequest:
    """Return a chat of one message, or a completion if the prompt is to be taken as it is."""
    if body.raw or body.suffix:
        same = {name: getattr(body, name) or None for name in ("model", "prompt", "suffix", "stream")}
        return validated(schemas.CompletionRequest, _options(body, notes) | same | {"prompt": body.prompt})
    if not body.prompt:  # it is to load the model
        return _chat(body, [], notes)
    system = [{"role": "system", "content": body.system}] if body.system else []
    user = _message("the prompt", {"role": "user", "content": body.prompt, "images": body.images})
    return _chat(body, [*system, user], notes)


def _chat(body: OllamaRequest, messages: list[Json], notes: Notes, **fields: Any) -> schemas.ChatRequest:
    fields |= _options(body, notes) | {"messages": messages}
    if body.think is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": bool(body.think)}
        fields["reasoning_effort"] = body.think if isinstance(body.think, str) else None
    return chat_request(body, ("model", "stream", "speculative"), **fields)


def _message(where: str, message: Json) -> Json:
    out = {name: value for name, value in message.items() if name not in ("images", "tool_name") and value}
    out.setdefault("content", None if "tool_calls" in out else "")
    if images := message.get("images"):
        parts = [{"type": "image_url", "image_url": {}} for _ in typed.items(f"{where}: its images", images)]
        out["content"] = [{"type": "text", "text": message.get("content") or ""}, *parts]
    if name := message.get("tool_name"):
        out["name"] = name
    return out


def _name_calls(messages: list[Json]) -> None:
    """Give calls and their results, which follow in order, ids that templates take; the same at each turn."""
    n, open_calls = 0, list[str]()
    for message in messages:
        if isinstance(calls := message.get("tool_calls"), list):
            open_calls = []
            for at, call in enumerate(calls):
                if isinstance(call, dict):
                    calls[at] = {"id": f"call{n:05}", **call}
                    open_calls.append(calls[at]["id"])
                    n += 1
        elif message.get("role") == "tool" and "tool_call_id" not in message and open_calls:
            message["tool_call_id"] = open_calls.pop(0)


def _options(body: OllamaRequest, notes: Notes) -> Json:
    """Return the options as OpenAI's fields."""
    given = body.options or {}
    if others := [name for name in given if name not in OPTIONS | PLACES]:
        notes.append(f"unknown options were ignored: {', '.join(others)}")
    options = {name: value for name, value in given.items() if name in OPTIONS}
    options["max_tokens"] = options.pop("num_predict", None)
    if body.format:
        schema = {"type": "json_schema", "json_schema": {"schema": body.format, "strict": True}}
        options["response_format"] = {"type": "json_object"} if body.format == "json" else schema
    return options


class OllamaWriter(BlockWriter):
    """A chat's or a completion's objects. Calls come whole."""

    def end(self) -> Iterator[Event]:
        yield "", self._object(self._content(), done=True)

    def full(self) -> Json:
        return self._object(self._content(self._blocks), done=True)

    def block_events(self, action: str, block: ContentBlock, text: str) -> Iterator[Event]:
        if action == ("stop" if block.kind == "call" else "text"):
            new = block if block.kind == "call" else replace(block, pieces=[text])
            yield "", self._object(self._content([new]))

    def _content(self, blocks: Sequence[ContentBlock] = ()) -> Json:
        """Return a message of blocks, or the fields of a completion."""
        content, thinking = ("".join(b.text for b in blocks if b.kind == k) for k in ("text", "reasoning"))
        thoughts: Json = {"thinking": thinking} if thinking else {}
        if not isinstance(self._body, OllamaChatRequest):
            return {"response": content, **thoughts}
        order = [block.index for block in self._blocks if block.kind == "call"]
        functions = [
            {"index": order.index(call.index), "name": call.name, "arguments": arguments}
            for call in blocks
            # Clients run what they get: a truncated call is none.
            if call.kind == "call" and (arguments := call_arguments(call.text)) is not None
        ]
        calls: Json = {"tool_calls": [{"function": one} for one in functions]} if functions else {}
        return {"message": {"role": "assistant", "content": content, **thoughts, **calls}}

    def _object(self, content: Json, *, done: bool = False) -> Json:
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        out = {"model": self._model, "created_at": created, **content, "done": done}
        if not done:
            return out
        if not self._answers.all:
            return out | {"done_reason": "load"}
        is_cut, timings = self._answers.all[0].finish.is_truncated, self._answers.timings()
        read, written = (round(1e6 * timings[f"{name}_ms"]) for name in ("prompt", "predicted"))
        out |= {"done_reason": "length" if is_cut else "stop", "total_duration": read + written}
        out |= {"prompt_eval_count": self._answers.n_prompt, "prompt_eval_duration": read}
        return out | {"load_duration": 0, "eval_count": self._answers.n_tokens, "eval_duration": written}
