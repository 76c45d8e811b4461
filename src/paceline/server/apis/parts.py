"""What the conversions of all APIs to OpenAI's chats have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from paceline.server.schemas import Body, ChatRequest, CompletionRequest, FimRequest
from paceline.speculative import validation as typed
from paceline.speculative.printable import truncated

Json = dict[str, Any]
Notes = list[str]  # what was left out of a request or changed, one line each
R = TypeVar("R", ChatRequest, CompletionRequest, FimRequest)
# Claude Code's first line, which differs at each request: with it no prefix would be in the cache.
BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:\s*\w+=[^;\n]*;)*\n?")


def chat_request(body: Body, same: Iterable[str], **fields: Any) -> ChatRequest:
    """Return a chat. same: fields that have the same name and meaning. None counts as left out.
    Raises RequestValidationError."""
    return validated(ChatRequest, {name: getattr(body, name) for name in same} | fields)


def validated(kind: type[R], fields: Json) -> R:
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_url=False)) from None


def without_billing_header(part: Any) -> Any:
    """Return a part of the system prompt without that line."""
    if not isinstance(part, dict) or not isinstance(text := part.get("text"), str):
        return part
    found = BILLING_HEADER.match(text)
    return part if found is None else {**part, "text": text[found.end() :]}


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
