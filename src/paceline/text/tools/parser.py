"""Parsing of tool calls in an answer, whole or streamed.

Content is emitted at once, and a call when it is complete. Text that may become a call waits until then."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from paceline.text.detokenizer import certain
from paceline.text.messages import Tool
from paceline.text.tools.call_parser import Call, CallParser, IncompleteError
from paceline.text.tools.formats import ToolFormat

LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9  # Mistral's templates take no other
THOUGHT, THOUGHT_END = "<think>", "</think>"  # between these nothing is a call


@dataclass(frozen=True)
class MessageDelta:
    """New content, or a call. index: number of the call."""

    content: str = ""
    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def openai(self) -> dict[str, Any]:
        """Return the `delta` of a chunk in OpenAI's format."""
        if self.index is None:
            return {"content": self.content}
        return {"tool_calls": [{"index": self.index, **_openai(self)}]}


@dataclass(frozen=True)
class AssistantMessage:
    """A whole answer: content, and the deltas of calls."""

    content: str
    calls: tuple[MessageDelta, ...]

    @classmethod
    def of(cls, deltas: Iterable[MessageDelta]) -> AssistantMessage:
        deltas = list(deltas)
        content = "".join(delta.content for delta in deltas)
        return cls(content, tuple(delta for delta in deltas if delta.index is not None))

    def openai(self) -> dict[str, Any]:
        """Return an assistant's message in OpenAI's format."""
        if not self.calls:
            return {"role": "assistant", "content": self.content}
        calls = [_openai(call) for call in self.calls]
        return {"role": "assistant", "content": self.content or None, "tool_calls": calls}


def _openai(call: MessageDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def new_id() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))


class ToolCallParser:
    """An incremental parser of one answer. White space before calls and at the end after calls is dropped.
    prefix: the beginning of the answer, if it is part of the prompt."""

    def __init__(
        self, form: ToolFormat, tools: Collection[Tool], ids: Callable[[], str] = new_id, prefix: str = ""
    ) -> None:
        self._format, self._ids = form, ids
        self._parser = CallParser(form, tools)
        self._parser.text = prefix
        marks = [*map(re.escape, sorted(form.start_markers, key=len, reverse=True)), THOUGHT]
        self._openers = re.compile("|".join([*marks, r"[{\[]"] if form.accepts_plain_json else marks))
        self._deltas: list[MessageDelta] = []
        self._thinking = False
        self._at_line_start = True  # no content since the beginning or the last call
        self.n_calls = 0

    def parse(self, text: str, *, cut: bool = False) -> AssistantMessage:
        """Parse a whole answer. cut: see `finish`."""
        return AssistantMessage.of([*self.feed(text), *self.finish(cut=cut)])

    def feed(self, text: str) -> list[MessageDelta]:
        """Add text of any length; return the new deltas."""
        self._parser.text += text
        return self._advance()

    def finish(self, *, cut: bool = False) -> list[MessageDelta]:
        """Return the last deltas. cut: the answer was truncated, so drop the beginning of a call."""
        self._parser.ended = True
        return self._advance(cut=cut)

    def _advance(self, *, cut: bool = False) -> list[MessageDelta]:
        while self._step(cut=cut):
            pass
        deltas, self._deltas = self._deltas, []
        return deltas

    def _step(self, *, cut: bool) -> bool:
        """Emit content or calls; return false if more text is needed."""
        if self._thinking:
            thought, mark, _ = self._parser.text.partition(THOUGHT_END)
            self._thinking = not mark
            is_whole = mark or self._parser.ended
            self._emit_content(len(thought + mark) if is_whole else certain(thought, (THOUGHT_END,)))
            return not self._thinking
        found = self._openers.search(self._parser.text)
        if found is None:
            self._emit_until_marker(cut=cut)
            return False
        opener, bare = found.group(), found.group() not in self._format.start_markers
        if opener == THOUGHT:
            self._emit_content(found.end())
            self._thinking = True
            return True
        before = len(self._parser.text[: found.start()].rstrip())
        self._emit_content(before)
        start, after = found.start() - before, found.end() - before
        calls: list[Call] = []
        try:
            if not bare:
                calls, end = self._parser.parse_calls(opener, after)
            elif self._at_line_start or "\n" in self._parser.text[:start]:
                calls, end = self._parser.parse_json_calls(start, strict=True)
        except IncompleteError:
            if self._parser.ended:
                self._emit_content(0 if cut else len(self._parser.text))
                self._parser.text = ""
            return False
        if not calls:
            self._emit_content(after)
            return True
        self._parser.drop(end)
        for call in calls:
            id_, arguments = call.id or self._ids(), _dump_json(call.arguments)
            self._deltas.append(MessageDelta("", self.n_calls, id_, call.name, arguments))
            self.n_calls += 1
        self._at_line_start = True
        return True

    def _emit_until_marker(self, *, cut: bool) -> None:
        """Emit the text before what may begin a call, without white space before it."""
        if not self._parser.ended:
            size = certain(self._parser.text, (*self._format.start_markers, THOUGHT))
            self._emit_content(len(self._parser.text[:size].rstrip()))
            return
        if cut:
            size = certain(self._parser.text, tuple(self._format.start_markers))
            if len(self._parser.text) - size > 1:
                self._parser.text = self._parser.text[:size].rstrip()
        if not (self.n_calls and self._at_line_start and self._parser.text.isspace()):
            self._emit_content(len(self._parser.text))

    def _emit_content(self, size: int) -> None:
        """Emit the first `size` characters as content."""
        if not size:
            return
        content = self._parser.text[:size]
        if self._deltas and self._deltas[-1].index is None:
            content = self._deltas.pop().content + content
        self._deltas.append(MessageDelta(content))
        self._at_line_start = False
        self._parser.drop(size)


def _dump_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return json.dumps(value) if any("\ud800" <= letter <= "\udfff" for letter in text) else text
