"""An answer with calls of tools, whole and in pieces, and as OpenAI's interface has both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Delta:
    """What is new: content, or a part of a call. start: where in all that was fed the content begins. index:
    the call's number. id, name: of a call that begins. arguments: more of their JSON."""

    content: str = ""
    start: int = 0
    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def openai(self) -> dict[str, Any]:
        """As the `delta` of a chunk."""
        if self.index is None:
            return {"content": self.content}
        call: dict[str, Any] = {"index": self.index}
        function = {"arguments": self.arguments}
        if self.id:
            call |= {"id": self.id, "type": "function"}
            function = {"name": self.name, **function}
        return {"tool_calls": [{**call, "function": function}]}


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    content: str
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, deltas: Iterable[Delta]) -> Answer:
        content, calls = list[str](), list[Call]()
        for delta in deltas:
            if delta.index is None:
                content.append(delta.content)
            elif delta.id:
                calls.append(Call(delta.id, delta.name, delta.arguments))
            else:
                calls[delta.index] = replace(
                    calls[delta.index], arguments=calls[delta.index].arguments + delta.arguments
                )
        return cls("".join(content), tuple(calls))

    def openai(self) -> dict[str, Any]:
        """As an assistant's message."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content or None}
        if not self.calls:
            return {**message, "content": self.content}
        calls = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in self.calls
        ]
        return {**message, "tool_calls": calls}
