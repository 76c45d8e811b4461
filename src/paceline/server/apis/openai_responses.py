"""OpenAI's responses: https://platform.openai.com/docs/api-reference/responses"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import Field

from paceline.request_handle import StepOutput
from paceline.server.apis.answer import Answers, BlockWriter, ContentBlock, Event
from paceline.server.apis.parts import Notes, chat_request, only_functions
from paceline.server.schemas import Body, ChatRequest, Json, Name, Objects, Text
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import truncated
from paceline.text.messages import copy_json

ID_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
PARTS = {"reasoning": "reasoning_text", "text": "output_text"}
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
DELTAS = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}


class TextOptions(Body):
    format: Json | None = None


class ReasoningOptions(Body):
    effort: str | None = None
    summary: str | None = None


# Of a response: what is the same in all, and what is repeated from its request.
FIXED: Json = {"object": "response", "store": False, "truncation": "disabled", "output": []}
FIXED |= dict.fromkeys(("error", "incomplete_details", "previous_response_id", "usage"))
REPEATED = ("instructions", "max_output_tokens", "parallel_tool_calls", "temperature", "top_p")
SAME = ("model", "temperature", "top_p", "stream", "speculative", "return_progress", "timings_per_token")


class ResponsesRequest(Body):
    """POST /v1/responses"""

    model: Name = ""
    input: Text | Objects = ""
    instructions: Text | None = None
    max_output_tokens: int | None = None
    temperature: Any = None
    top_p: Any = None
    stream: bool = False
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    metadata: Json | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool = False
    return_progress: bool = False
    timings_per_token: bool = False
    speculative: Any = None


def to_chat(body: ResponsesRequest, notes: Notes) -> ChatRequest:
    """Return the chat that a request for a response asks for."""
    for field in ("previous_response_id", "conversation", "background"):
        if getattr(body, field):
            raise UsageError(f"{field}: this server stores no responses: send the whole conversation")
    for field in ("metadata", "tools", "tool_choice"):  # which the response repeats
        copy_json(field, getattr(body, field))
    copy_json("text: its format", body.text.format)
    messages = [{"role": "system", "content": body.instructions}] if body.instructions else list[Json]()
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for at, item in enumerate(items if body.input else ()):
        _add_item(messages, f"input[{at}]", item, notes)
    tools: list[Json] | None = None
    choice: Any = body.tool_choice
    if body.tools is not None:
        mine = only_functions(body.tools, "function", "", notes)
        tools = [{"type": "function", "function": _without_type(tool)} for tool in mine]
    if isinstance(choice, dict):
        kind, name = choice.get("type"), choice.get("name")
        if tools is not None and kind == "allowed_tools":
            allowed = [one.get("name") for one in choice.get("tools") or () if isinstance(one, dict)]
            tools = [tool for tool in tools if tool["function"].get("name") in allowed]
        named: Json = {"type": "function", "function": {"name": name}}
        choice = named if kind == "function" else choice.get("mode", "auto")
    form = body.text.format
    if form is not None and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": _without_type(form)}
    return chat_request(
        body,
        SAME,
        messages=[
            {**one, "content": one["content"] or None} if "tool_calls" in one else one for one in messages
        ],
        max_tokens=body.max_output_tokens,
        tools=tools,
        tool_choice=choice if tools else None,
        response_format=form,
        reasoning_effort=body.reasoning.effort,
    )


def _add_item(messages: list[Json], where: str, item: Json, notes: Notes) -> None:
    """Add an item of the input to messages: thoughts and calls belong to the answer that they come with."""
    kind = item.get("type", "message")
    if kind == "message":
        content = item.get("content")
        content = [_part(part) for part in content] if isinstance(content, list) else content
        last: Json = messages[-1] if messages else {}
        if item.get("role") == "assistant" and last.get("role") == "assistant" and not last["content"]:
            last["content"] = content  # after its thoughts
        else:
            messages.append({"role": item.get("role"), "content": content})
    elif kind == "reasoning":
        lists = (typed.items(f"{where}: its {name}", item.get(name) or ()) for name in ("content", "summary"))
        parts = [part for one in lists for part in one]
        texts = [typed.mapping(where, part, "a part with text").get("text") for part in parts]
        if thought := "\n".join(text for text in texts if isinstance(text, str)):
            messages.append({"role": "assistant", "content": "", "reasoning_content": thought})
    elif kind in ("function_call", "custom_tool_call"):
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        arguments = item.get("arguments") if kind == "function_call" else {"input": item.get("input")}
        function = {"name": item.get("name"), "arguments": arguments}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output")
        output = [_part(part) for part in output] if isinstance(output, list) else output
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    else:
        notes.append(f"{where}: an item of type {truncated(str(kind), 40)} was left out")


def _part(part: Any) -> Any:
    """Return a part of a content in the form of chats."""
    if not isinstance(part, dict):
        return part
    if part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return {**part, "type": "text"} if part.get("type") in TEXT_PARTS else part


def _without_type(one: Json) -> Json:
    return {name: value for name, value in one.items() if name != "type" and value is not None}


class ResponsesWriter(BlockWriter):
    """A response, whole or as events."""

    def __init__(self, answers: Answers, model: str, body: ResponsesRequest) -> None:
        super().__init__(answers, model, body)
        self._key, self._created, self._sequence = secrets.token_hex(16), int(time.time()), -1

    def begin(self) -> Iterator[Event]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        if self._body.return_progress:
            for progress in self._answers.progress(index, update):
                response = self._response("in_progress")
                yield self._event("response.in_progress", response=response, prompt_progress=progress)
        yield from super().step(index, update, deltas)

    def end(self) -> Iterator[Event]:
        extra = {"timings": self._answers.timings()} if self._body.timings_per_token else {}
        # Clients wait for this event; the response says whether it is incomplete.
        yield self._event("response.completed", response=self.full(), **extra)

    def failed(self, body: Json) -> Event:
        error = {"code": body["code"] or "server_error", "message": body["message"]}
        return self._event("response.failed", response=self._response("failed") | {"error": error})

    def block_events(self, action: str, block: ContentBlock, text: str) -> Iterator[Event]:
        at: Json = {"output_index": block.index}
        inner, is_call = {"item_id": self._name(block), **at}, block.kind == "call"
        inner |= {} if is_call else {"content_index": 0}
        extra: Json = {"logprobs": []} if block.kind == "text" else {}
        if action == "start":
            empty: Json = {"arguments": ""} if is_call else {"content": []}
            item = self._item(block, "in_progress") | empty
            yield self._event("response.output_item.added", item=item, **at)
            if not is_call:
                yield self._event("response.content_part.added", part=_part_of(block, ""), **inner)
        elif action == "text":
            extra |= {"timings": self._answers.timings()} if self._body.timings_per_token else {}
            yield self._event(f"{DELTAS[block.kind]}.delta", delta=text, **inner, **extra)
        else:
            done = {"arguments": block.text, "name": block.name} if is_call else {"text": block.text}
            yield self._event(f"{DELTAS[block.kind]}.done", **done, **inner, **extra)
            if not is_call:
                yield self._event("response.content_part.done", part=_part_of(block, block.text), **inner)
            yield self._event("response.output_item.done", item=self._item(block, self._status(block)), **at)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._sequence += 1
        return kind, {"type": kind, "sequence_number": self._sequence, **fields}

    def _name(self, block: ContentBlock) -> str:
        return f"{ID_PREFIXES[block.kind]}_{self._key}{block.index}"

    def _status(self, block: ContentBlock) -> str:
        """Return the status of an item that has ended: the last one may be truncated."""
        end = self._answers.all[0].handle.finish
        cut = end is not None and end.is_truncated and block is self._blocks[-1]
        return "incomplete" if cut else "completed"

    def _item(self, block: ContentBlock, status: str) -> Json:
        base: Json = {"id": self._name(block), "status": status}
        if block.kind == "call":
            fields = {"call_id": block.id, "name": block.name, "arguments": block.text}
            return {"type": "function_call", **base, **fields}
        content = [_part_of(block, block.text)]
        if block.kind == "reasoning":
            return {"type": "reasoning", **base, "summary": [], "content": content, "encrypted_content": None}
        return {"type": "message", **base, "role": "assistant", "content": content}

    def full(self) -> Json:
        answers = self._answers.all
        cut = bool(answers) and answers[0].finish.is_truncated
        read, written = self._answers.n_prompt, self._answers.n_tokens
        return self._response("incomplete" if cut else "completed") | {
            "output": [self._item(block, self._status(block)) for block in self._blocks],
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": self._answers.n_cached},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": read + written,
            },
        }

    def _response(self, status: str) -> Json:
        body, repeated = self._body, {name: getattr(self._body, name) for name in REPEATED}
        base = {
            "id": f"resp_{self._key}",
            "created_at": self._created,
            "status": status,
            "model": self._model,
        }
        return {
            **FIXED,
            **base,
            **repeated,
            "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
            "text": {"format": body.text.format or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "metadata": body.metadata or {},
        }


def _part_of(block: ContentBlock, text: str) -> Json:
    extra: Json = {"annotations": [], "logprobs": []} if block.kind == "text" else {}
    return {"type": PARTS[block.kind], "text": text, **extra}
