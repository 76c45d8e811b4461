"""Messages as a model's template can show them: text alone, and system messages where it has a place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.api import LLM
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import count


def readable_parts(messages: Sequence[Any], notes: list[str]) -> list[Any]:
    """Return messages without images and files that were sent in earlier turns, which are noted.
    Raises UsageError for those that came since the last answer."""
    read, n_left = list(messages), 0
    newest = max((at for at, one in enumerate(read) if one.get("role") == "assistant"), default=-1)
    for at, message in enumerate(read):
        content = message.get("content")
        if not isinstance(content, list) or all(_is_text(part) for part in content):
            continue
        texts = [part for part in content if _is_text(part)]
        if at > newest:
            other = next(part for part in content if not _is_text(part))
            kind = other.get("type") if isinstance(other, dict) else other
            where = f"messages[{at}]: its content has a part of type {kind!r}"
            raise UsageError(f"{where}: image input is not supported: this server reads text only")
        n_left += len(content) - len(texts)
        read[at] = {**message, "content": texts or [{"type": "text", "text": "(not text: left out)"}]}
    if n_left:
        notes.append(f"{count(n_left, 'part')} of earlier messages that are not text were left out")
    return read


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")


def one_system_message(llm: LLM, messages: Sequence[Any], notes: list[str]) -> list[Any]:
    """Return messages whose first system messages are one, and whose later ones the template can show: few
    templates have a place for them, and some drop them without a word."""
    roles = ["system" if one.get("role") == "developer" else one.get("role") for one in messages]
    n_first = next((at for at, role in enumerate(roles) if role != "system"), len(roles))
    joined, out = ["system"], list[Any]()
    if "system" in roles[n_first:] and not llm.shows_late_system_messages:
        notes.append("system messages within the conversation were read as the user's")
        roles[n_first:] = ["user" if role == "system" else role for role in roles[n_first:]]
        joined.append("user")
    for one, role in zip(messages, roles, strict=True):
        if out and role in joined and role == out[-1]["role"]:
            parts = [*content_parts(out[-1].get("content")), {"type": "text", "text": "\n\n"}]
            out[-1] = {**out[-1], "content": [*parts, *content_parts(one.get("content"))]}
        else:
            out.append({**one, "role": role})
    return out


def content_parts(content: Any) -> list[Any]:
    """Return a content as a list of parts."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
