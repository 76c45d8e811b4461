"""What the conversions of all APIs to OpenAI's chats have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from paceline.server.schemas import Body, ChatRequest, CompletionRequest, FimRequest, Json
from paceline.speculative.printable import truncated

Notes = list[str]  # what was left out of a request or changed, one line each
R = TypeVar("R", ChatRequest, CompletionRequest, FimRequest)


def chat_request(body: Body, same: Iterable[str], **fields: Any) -> ChatRequest:
    """Return a chat. same: fields that have the same name and meaning. None counts as left out.
    Raises RequestValidationError."""
    return validated(ChatRequest, {name: getattr(body, name) for name in same} | fields)


def validated(kind: type[R], fields: Json) -> R:
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None


def only_functions(tools: Sequence[Json], kind: str, default: str, notes: Notes) -> list[Json]:
    """Return the tools of a kind, the functions; the client's own kinds cannot be called here."""
    kinds = dict.fromkeys(truncated(str(tool.get("type", default)), 40) for tool in tools)
    if others := [one for one in kinds if one != kind]:
        notes.append(f"tools of type {', '.join(others)} were left out")
    return [tool for tool in tools if tool.get("type", default) == kind]


def call_arguments(text: str) -> Json | None:
    """Return a call's arguments as an object; None if they are no JSON object, as of a truncated call."""
    try:
        value = json.loads(text.encode("utf-8", "replace") or "{}")
        # Without NaN, and without lone surrogates that were escaped.
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        value = json.loads(written.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
