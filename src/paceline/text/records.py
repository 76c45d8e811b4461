"""Texts in a record of a log: OpenAI-style requests and answers, agents' sessions, and our traces.

Recognised at the top level or under request, response or body: `messages` (role, content), `choices` (a
message or a text), `conversations` (from, value), `completion`, `text` and `tokens`, with the prompts
`prompt` and `prompt_tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Content = str | list[int]
INSIDE = ("request", "response", "body")
COMPLETIONS = ("completion", "response", "output", "text")
ASSISTANT, REASONING, RAW = "assistant", "reasoning", ""  # RAW: a prompt that is no message
ANSWERS = (ASSISTANT, REASONING)
OTHER_NAMES = {"gpt": ASSISTANT, "model": ASSISTANT, "human": "user", "developer": "system"}


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def record_parts(data: dict[str, Any], depth: int = 0) -> Iterator[tuple[str, Content]]:
    """Yield the texts and token lists of a record in order, each with its role.
    Tool calls follow their message's text, a JSON object per line, since a log does not contain the model's
    syntax for them."""
    for message in _objects(data.get("messages")):
        yield from _message(message, message.get("role"))
    for turn in _objects(data.get("conversations")):
        yield from _part(turn.get("from"), turn.get("value"))
    yield from _part(RAW, data.get("prompt"))
    for name in INSIDE if depth < len(INSIDE) else ():
        if isinstance(inner := data.get(name), dict):
            yield from record_parts(inner, depth + 1)
    for choice in _objects(data.get("choices")):
        if isinstance(answer := choice.get("message"), dict):
            yield from _message(answer, ASSISTANT)
        else:
            yield from _part(ASSISTANT, choice.get("text"))
    for name in COMPLETIONS:
        yield from _part(ASSISTANT, data.get(name))
    for name, role in (("prompt_tokens", RAW), ("tokens", ASSISTANT)):
        ids = data.get(name)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            yield role, ids


def _message(message: dict[str, Any], role: Any) -> Iterator[tuple[str, str]]:
    yield from _part(REASONING, message.get("reasoning_content"))
    calls = []
    for call in _objects(message.get("tool_calls")):
        if isinstance(function := call.get("function"), dict):
            arguments = function.get("arguments", "{}")
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            calls.append(f'{{"name": "{function.get("name")}", "arguments": {arguments}}}')
    text = _text(message.get("content"))
    yield from _part(role, "\n".join([text, *calls] if text else calls))


def _part(role: Any, content: Any) -> Iterator[tuple[str, str]]:
    text = _text(content)
    if isinstance(role, str) and text.strip():
        yield OTHER_NAMES.get(role, role), text


def _text(content: Any) -> str:
    """Return a text, or the joined texts of content parts; "" for anything else."""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in _objects(content)]
    # JSON may hold unpaired surrogates, which no tokenizer accepts.
    return "".join(part for part in parts if isinstance(part, str)).encode("utf-8", "replace").decode()


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
