"""Validation of messages, tools and template variables in OpenAI's format.

Templates get the same values as from transformers' `apply_chat_template`: arguments as mappings, and
reasoning under all of its names."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError

Message = dict[str, Any]  # role, content, and other JSON values
Tool = dict[str, Any]  # {"type": "function", "function": {"name": ..., "parameters": ...}}
Prompt = str | Iterable[Mapping[str, Any]]

MAX_JSON_DEPTH = 40  # nested lists and mappings
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # the usual name first
RESERVED_VARIABLES = ("messages", "tools", "bos_token", "eos_token")


@dataclass(frozen=True)
class ToolChoice:
    """Tools that a model may call. required_names: functions one of which it has to call, if any."""

    tools: list[Tool]
    required_names: tuple[str, ...] = ()


def parse_messages(prompt: Prompt) -> list[Message]:
    """Validate a user's message or a conversation. Raises UsageError.
    Contents are text, or None beside calls."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": typed.text("the prompt", prompt)}]
    messages, names = list[Message](), dict[str, str]()
    form = "text, or a list of messages with role and content"
    for number, given in enumerate(typed.items("the chat", prompt, form)):
        message = _message(f"messages[{number}]", given)
        calls = message.get("tool_calls", [])
        names |= {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])
        messages.append(message)
    return messages


def _message(where: str, given: Any) -> Message:
    data = _fields(where, given, "a mapping with role and content")
    role = typed.text(f"{where}: its role", data.pop("role", None))
    calls, content = data.pop("tool_calls", None), data.pop("content", None)
    message: Message = {"role": "system" if role == "developer" else role, "content": None}
    if calls:
        message["tool_calls"] = _calls(where, calls)
    if content is not None or not calls:
        message["content"] = content_text(f"{where}: its content", content)
    for name in ("name", "tool_call_id"):
        if name in data:
            typed.text(f"{where}: its {name}", data[name])
    message |= data
    reasoning = next((message[name] for name in REASONING_KEYS if name in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, REASONING_KEYS[0]: reasoning}
    return message


def _fields(where: str, value: Any, wanted: str) -> dict[str, Any]:
    """Return a copy of a mapping of JSON values, without what is null. Raises UsageError."""
    copied: dict[str, Any] = copy_json(where, typed.mapping(where, value, wanted))
    return {name: item for name, item in copied.items() if item is not None}


def content_text(name: str, content: Any) -> str:
    """Return a content, or its joined parts. Raises UsageError."""
    if not isinstance(content, list | tuple):
        return typed.text(name, content)
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, Mapping) else part
            raise typed.invalid(f"{name} has a part of type", kind, "text: nothing else can be read here")
        texts.append(typed.text(name, part.get("text")))
    return "".join(texts)


def _calls(where: str, calls: Any) -> list[dict[str, Any]]:
    made, form = [], 'a mapping: {"id": ..., "type": "function", "function": {...}}'
    for number, call in enumerate(typed.items(f"{where}: its tool_calls", calls)):
        name = f"{where}: tool_calls[{number}]"
        own = _fields(name, call, form)
        function = typed.mapping(name, own.get("function"), form)
        if "id" in own:
            typed.text(f"{name}: its id", own["id"])
        own["function"] = {
            "name": function_name(f"{name}: its name", function.get("name")),
            "arguments": _arguments(f"{name}: its arguments", function.get("arguments")),
        }
        made.append({"type": "function", **own})
    return made


def _arguments(name: str, arguments: Any) -> Any:
    """Return arguments as a mapping. Text that is no JSON object, as of a truncated answer, is unchanged."""
    if not isinstance(arguments, str):
        return typed.mapping(name, {} if arguments is None else arguments, "JSON text or a mapping")
    try:
        made = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return copy_json(name, made) if isinstance(made, dict) else arguments


def function_name(name: str, value: Any) -> str:
    """Validate the name of a function. Raises UsageError."""
    if not NAME.fullmatch(typed.text(name, value)):
        raise typed.invalid(name, value, "of 1 to 128 letters, digits, _, - and .")
    return str(value)


def parse_tools(tools: Iterable[Mapping[str, Any]] | None) -> list[Tool]:
    """Validate tools in OpenAI's format. Raises UsageError."""
    if tools is None:
        return []
    made, names = list[Tool](), set[str]()
    form = 'a mapping: {"type": "function", "function": {"name": ..., "parameters": {...}}}'
    for number, tool in enumerate(typed.items("tools", tools, "a list of function descriptions")):
        where = f"tools[{number}]"
        own = _fields(where, tool, form)
        kind = own.get("type", "function")
        function = _fields(where, own.get("function") if kind == "function" else kind, form)
        name = function_name(f"{where}: its name", function.get("name"))
        if name in names:
            raise UsageError(f"{where}: there is another one named {name}: give it a name of its own")
        names.add(name)
        typed.mapping(f"{where}: its parameters", function.get("parameters") or {}, "a JSON schema")
        made.append({"type": "function", **own, "function": function})
    return made


def parse_tool_choice(tools: Iterable[Mapping[str, Any]] | None, tool_choice: Any = None) -> ToolChoice:
    """Validate OpenAI's `tools` and `tool_choice`. Raises UsageError."""
    known = parse_tools(tools)
    names = tuple(tool["function"]["name"] for tool in known)
    if tool_choice == "none":
        return ToolChoice([])
    if tool_choice is None or tool_choice == "auto":
        return ToolChoice(known)
    if not known:
        raise UsageError("tool_choice asks for a call, and there are no tools: give some, or leave it out")
    if tool_choice == "required":
        return ToolChoice(known, names)
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    wanted = function.get("name") if isinstance(function, Mapping) else None
    if wanted is None:
        form = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
        raise typed.invalid("tool_choice", tool_choice, form)
    if wanted not in names:
        raise typed.invalid("tool_choice: the function", wanted, f"one of the tools: {', '.join(names)}")
    return ToolChoice(known, (str(wanted),))


def template_variables(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Validate additional template variables (enable_thinking, documents). Raises UsageError."""
    name = "chat_template_kwargs"
    made: dict[str, Any] = {} if given is None else copy_json(name, typed.mapping(name, given))
    if reserved := next((key for key in RESERVED_VARIABLES if key in made), None):
        raise UsageError(f"{name}: {reserved} is not to be set there")
    return made


def copy_json(name: str, value: Any, depth: int = 0) -> Any:
    """Copy a JSON value to Python's built-in types. Raises UsageError."""
    if depth > MAX_JSON_DEPTH:
        raise UsageError(f"{name}: lists and mappings within one another, over {MAX_JSON_DEPTH} levels")
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, str):
        return typed.text(name, value)
    if isinstance(value, Mapping):
        return {typed.text(name, key): copy_json(name, item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [copy_json(name, item, depth + 1) for item in value]
    raise typed.invalid(name, value, "what JSON has: text, numbers, lists and mappings")


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts and keys in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from texts_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
