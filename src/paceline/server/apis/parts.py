"""What the conversions of all APIs to OpenAI's chats have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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


def only_functions(tools: Iterable[Json], is_function: Callable[[Json], bool], notes: Notes) -> list[Json]:
    """Return the functions among tools; the client's own kinds cannot be called here."""
    tools = list(tools)
    others = [tool for tool in tools if not is_function(tool)]
    if others:
        kinds = dict.fromkeys(truncated(str(tool.get("type")), 40) for tool in others)
        notes.append(f"tools of type {', '.join(kinds)} were left out")
    return [tool for tool in tools if is_function(tool)]


def call_arguments(text: str) -> Json | None:
    """Return a call's arguments as an object; None if they are no JSON object, as of a truncated call."""
    clean = text.encode("utf-8", "replace").decode()
    try:
        value = json.loads(clean or "{}")
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    fixed = written.encode("utf-8", "replace").decode()  # escaped lone surrogates
    return value if fixed == written else json.loads(fixed)
