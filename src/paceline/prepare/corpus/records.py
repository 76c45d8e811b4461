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
ANSWERS = ("completion", "response", "output", "text")
ASSISTANT = ("assistant", "gpt", "model")


def parse_record(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def record_texts(data: dict[str, Any], depth: int = 0) -> Iterator[tuple[Content, bool]]:
    """Yield the texts and token lists of a record in order, with whether each is an answer."""
    for message in _objects(data.get("messages")):
        yield from _message(message, message.get("role") in ASSISTANT)
    for turn in _objects(data.get("conversations")):
        yield from _texts(turn.get("value"), turn.get("from") in ASSISTANT)
    yield from _texts(data.get("prompt"), False)
    for name in INSIDE if depth < len(INSIDE) else ():
        inner = data.get(name)
        if isinstance(inner, dict):
            yield from record_texts(inner, depth + 1)
    for choice in _objects(data.get("choices")):
        if isinstance(answered := choice.get("message"), dict):
            yield from _message(answered, True)
        yield from _texts(choice.get("text"), True)
    for name in ANSWERS:
        yield from _texts(data.get(name), True)
    for name, answer in (("prompt_tokens", False), ("tokens", True)):
        ids = data.get(name)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            yield ids, answer


def _message(message: dict[str, Any], answer: bool) -> Iterator[tuple[Content, bool]]:
    for name in ("reasoning_content", "content"):
        yield from _texts(message.get(name), answer)
    for call in _objects(message.get("tool_calls")):
        if isinstance(function := call.get("function"), dict):
            yield from _texts(function.get("arguments"), answer)


def _texts(value: Any, answer: bool) -> Iterator[tuple[Content, bool]]:
    """Yield a text, or the texts of content parts."""
    parts = [value] if isinstance(value, str) else [part.get("text") for part in _objects(value)]
    for text in parts:
        if isinstance(text, str) and text.strip():
            # JSON may hold unpaired surrogates, which no tokenizer accepts.
            yield text.encode("utf-8", "replace").decode(), answer


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
