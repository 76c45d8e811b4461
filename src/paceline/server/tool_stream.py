"""An answer's text as deltas of content and of tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline.request_handle import StepOutput
from paceline.server.convert import ToolCallParsing
from paceline.text.tools.parser import MessageDelta, ToolCallParser

Parts = list[tuple[str, str]]


@dataclass(frozen=True)
class ChunkDelta:
    """A chunk's delta. parts: its content, each part with its drafter."""

    delta: dict[str, Any]
    parts: Parts


class ToolDeltaReader:
    """Turn the outputs of one answer into deltas. calls: None if the request has no tools."""

    def __init__(self, calls: ToolCallParsing | None) -> None:
        self._stream: ToolCallParser | None = None
        self._fed: list[tuple[int, str, str]] = []  # parts held back: offset, text, drafter
        self._end = 0  # offset of the end of the text so far
        if calls is not None:
            self._stream = ToolCallParser(calls.format, calls.tools)
            self._stream.feed(calls.answer_prefix)
            self._end = len(calls.answer_prefix)

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return 0 if self._stream is None else self._stream.n_calls

    def read(self, update: StepOutput) -> list[ChunkDelta]:
        if self._stream is None:
            return [ChunkDelta({"content": update.text}, list(update.parts))] if update.text else []
        for text, source in update.parts:
            self._fed.append((self._end, text, source))
            self._end += len(text)
        deltas = self._stream.feed(update.text)
        if update.finish is not None:
            deltas += self._stream.finish(cut=update.finish.is_truncated)
        return [ChunkDelta(delta.openai(), self._parts(delta)) for delta in deltas]

    def _parts(self, delta: MessageDelta) -> Parts:
        """Return the parts of the text that the delta spans, and drop those up to its end."""
        if delta.index is not None:
            return []
        begin, end = delta.start, delta.start + len(delta.content)
        parts, rest = Parts(), list[tuple[int, str, str]]()
        for at, text, source in self._fed:
            if piece := text[max(0, begin - at) : max(0, end - at)]:
                parts.append((piece, source))
            if at + len(text) > end:
                rest.append((at, text, source))
        self._fed = rest
        return parts
