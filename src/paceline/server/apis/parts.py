"""What the conversions of all APIs to OpenAI's chats have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from paceline.server.schemas import Body, ChatRequest, CompletionRequest
from paceline.speculative import validation as typed
from paceline.speculative.printable import printable

Json = dict[str, Any]
Notes = list[str]  # what was left out of a request or changed, one line each
R = TypeVar("R", ChatRequest, CompletionRequest)
BILLING_HEADER = "x-anthropic-billing-header:"


def chat_request(body: Body, same: Iterable[str], **fields: Any) -> ChatRequest:
    """Return a chat. same: fields that have the same name and meaning. None counts as left out.
    Raises RequestValidationError."""
    return validated(ChatRequest, {name: getattr(body, name) for name in same} | fields)


def validated(kind: type[R], fields: Json) -> R:
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None


def is_billing_header(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(BILLING_HEADER)


def joined_text(name: str, parts: Iterable[Any], separator: str = "") -> str:
    """Return the texts of content parts. Raises UsageError for parts that have none."""
    texts = list[str]()
    for at, part in enumerate(parts):
        given = typed.mapping(f"{name}[{at}]", part, "a part with text").get("text")
        texts.append(typed.text(f"{name}[{at}]: its text", given))
    return separator.join(texts)


def only_functions(tools: Iterable[Json], is_function: Callable[[Json], bool], notes: Notes) -> list[Json]:
    """Return the functions among tools; the client's own kinds cannot be called here."""
    tools = list(tools)
    others = [tool for tool in tools if not is_function(tool)]
    if others:
        kinds = dict.fromkeys(printable(str(tool.get("type")))[:40] for tool in others)
        notes.append(f"tools of type {', '.join(kinds)} were left out")
    return [tool for tool in tools if is_function(tool)]


def call_arguments(text: str) -> Any:
    """Return a call's arguments as an object; those of a truncated call may be none."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    return value if isinstance(value, Mapping) else {}
