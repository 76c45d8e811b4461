"""An answer with calls of tools, whole and in pieces, and as OpenAI's interface has both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class MessageDelta:
    """New content, or a call.

    start: position of the content in all that was fed. index: the call's number.
    """

    content: str = ""
    start: int = 0
    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def openai(self) -> dict[str, Any]:
        """Return the `delta` of a chunk in OpenAI's interface."""
        if self.index is None:
            return {"content": self.content}
        return {"tool_calls": [{"index": self.index, **_openai(self)}]}


@dataclass(frozen=True)
class AssistantMessage:
    """A whole answer: its content, and the deltas of its calls."""

    content: str
    calls: tuple[MessageDelta, ...]

    @classmethod
    def of(cls, deltas: Iterable[MessageDelta]) -> AssistantMessage:
        deltas = list(deltas)
        content = "".join(delta.content for delta in deltas)
        return cls(content, tuple(delta for delta in deltas if delta.index is not None))

    def openai(self) -> dict[str, Any]:
        """Return an assistant's message in OpenAI's interface."""
        if not self.calls:
            return {"role": "assistant", "content": self.content}
        calls = [_openai(call) for call in self.calls]
        return {"role": "assistant", "content": self.content or None, "tool_calls": calls}


def _openai(call: MessageDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}
