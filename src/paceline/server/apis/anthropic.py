"""Anthropic's messages: https://docs.anthropic.com/en/api/messages"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from paceline.server.apis.answer import Answers, BlockWriter, ContentBlock, Event
from paceline.server.apis.parts import Notes, call_arguments, chat_request, only_functions
from paceline.server.chat_messages import content_parts
from paceline.server.schemas import Body, ChatRequest, Json, Name, Objects, Text, Texts
from paceline.speculative import validation as typed

# Claude Code's first line, which differs at each request: with it no prefix would be in the cache.
BILLING_HEADER = re.compile(r"\Ax-anthropic-billing-header:(?:\s*\w+=[^;\n]*;)*\n?")
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STARTS: dict[str, Json] = {
    "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
    "text": {"type": "text", "text": ""},
}
DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


class Thinking(Body):
    type: str | None = None
    budget_tokens: Any = None  # no limit of its own


class OutputConfig(Body):
    format: Json | None = None
    effort: str | None = None


class MessagesRequest(Body):
    """POST /v1/messages"""

    model: Name = ""
    messages: Objects
    max_tokens: int | None = None
    system: Text | list[Json] | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    stop_sequences: Texts | None = None
    stream: bool = False
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    thinking: Thinking = Field(default_factory=Thinking)
    output_config: OutputConfig = Field(default_factory=OutputConfig)
    output_format: Json | None = None
    speculative: Any = None


def to_chat(body: MessagesRequest, notes: Notes) -> ChatRequest:
    """Return the chat that Anthropic's request asks for."""
    given = [{"text": body.system}] if isinstance(body.system, str) else body.system or []
    texts = [typed.text(f"system[{at}]: its text", part.get("text")) for at, part in enumerate(given)]
    system = [BILLING_HEADER.sub("", text, count=1) for text in texts]
    messages: list[Json] = [{"role": "system", "content": text} for text in system if text]
    for at, message in enumerate(body.messages):
        messages += list(_messages(f"messages[{at}]", message))
    tools = None
    if body.tools is not None:
        tools = [_tool(tool) for tool in only_functions(body.tools, "custom", "custom", notes)]
    form, thinking = body.output_format or body.output_config.format, body.thinking.type
    schema = {"schema": (form or {}).get("schema"), "strict": True}
    last: Json = messages[-1] if messages else {}
    return chat_request(
        body,
        ("model", "temperature", "top_p", "top_k", "stream", "speculative"),
        messages=messages,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences,
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice) if tools else None,
        response_format=form and {"type": "json_schema", "json_schema": schema},
        reasoning_effort=body.output_config.effort,
        chat_template_kwargs=thinking and {"enable_thinking": thinking != "disabled"},
        continue_final_message=last.get("role") == "assistant" and not last.get("tool_calls"),
    )


def _messages(where: str, message: Json) -> Iterator[Json]:
    """Yield a message in OpenAI's form: the results of calls are messages of their own there."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    parts, calls, thoughts = list[Json](), list[Json](), list[str]()
    for at, block in enumerate(content):
        name = f"{where}: content[{at}]"
        kind = typed.mapping(name, block, "a block with a type").get("type")
        if kind == "tool_result":
            if parts:
                yield {"role": role, "content": parts}
                parts = []
            result = block.get("content") or ""
            if block.get("is_error"):
                result = [{"type": "text", "text": "Error: "}, *content_parts(result)]
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": result}
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind == "thinking":
            thoughts.append(typed.text(f"{name}: thinking", block.get("thinking")))
        elif kind != "redacted_thinking":
            parts.append(block)
    if role == "assistant":
        own = {"content": parts or (None if calls else ""), "tool_calls": calls or None}
        yield {"role": role, **own, "reasoning_content": "\n".join(thoughts) or None}
    elif parts:
        yield {"role": role, "content": parts}


def _tool(tool: Json) -> Json:
    names = {"name": "name", "description": "description", "strict": "strict", "input_schema": "parameters"}
    return {"type": "function", "function": {names[k]: v for k, v in tool.items() if k in names}}


def _tool_choice(choice: Json | None) -> Any:
    kind = None if choice is None else str(choice.get("type"))
    if choice is None or kind == "tool":
        return choice and {"type": "function", "function": {"name": choice.get("name")}}
    if kind not in TOOL_CHOICES:
        raise typed.invalid("tool_choice: its type", kind, "auto, any, tool or none")
    return TOOL_CHOICES[kind]


class MessagesWriter(BlockWriter):
    """A message, whole or as Anthropic's events."""

    def __init__(self, answers: Answers, model: str, body: MessagesRequest) -> None:
        super().__init__(answers, model, body)
        name = f"msg_{secrets.token_hex(12)}"
        self._base: Json = {"id": name, "type": "message", "role": "assistant", "model": model}

    def begin(self) -> Iterator[Event]:
        message = {**self._base, "content": [], "stop_reason": None, "stop_sequence": None}
        yield self._event("message_start", message=message | {"usage": self._usage()})

    def end(self) -> Iterator[Event]:
        yield self._event("message_delta", delta=self._stop(), usage=self._usage())
        yield self._event("message_stop")

    def full(self) -> Json:
        # Clients run what they get: a truncated call is none.
        whole = [one for one in self._blocks if one.kind != "call" or call_arguments(one.text) is not None]
        content = [_content(block) for block in whole]
        return {**self._base, "content": content, **self._stop(), "usage": self._usage()}

    def block_events(self, action: str, block: ContentBlock, text: str) -> Iterator[Event]:
        at = block.index
        if action == "start":
            yield self._event("content_block_start", index=at, content_block=_content(block, empty=True))
        elif action == "text":
            kind, field = DELTAS[block.kind]
            yield self._event("content_block_delta", index=at, delta={"type": kind, field: text})
        else:
            if block.kind == "reasoning":  # clients send thoughts back with their signature
                signature = {"type": "signature_delta", "signature": ""}
                yield self._event("content_block_delta", index=at, delta=signature)
            yield self._event("content_block_stop", index=at)

    def failed(self, body: Json) -> Event:
        return "error", body

    @staticmethod
    def _event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, **fields}

    def _stop(self) -> Json:
        reason, sequence = "end_turn", None
        for answer in self._answers.all:  # at most one
            reason, sequence = STOP_REASONS[answer.finish_reason], answer.handle.stop_string
        if reason == "end_turn" and sequence is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> Json:
        """Return the usage. Anthropic's input tokens are those that were not in a cache."""
        cached = self._answers.n_cached
        return {
            "input_tokens": self._answers.n_prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._answers.n_tokens,
        }


def _content(block: ContentBlock, *, empty: bool = False) -> Json:
    """Return a content block. empty: as it begins in a stream."""
    if block.kind == "call":
        arguments = {} if empty else call_arguments(block.text) or {}
        return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}
    text = "" if empty else block.text
    return {**STARTS[block.kind], DELTAS[block.kind][1]: text}
