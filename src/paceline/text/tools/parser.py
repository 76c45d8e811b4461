"""Parsing of an answer, whole or streamed: its content, its thoughts and its tool calls.

Everything is emitted as soon as it is clear what it is: the name of a call when it is known to be a declared
tool's, then the arguments as JSON text. Content waits only where it may be the beginning of a call."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from paceline.text.messages import REASONING_KEYS, Tool
from paceline.text.tools.call_parser import CallParser
from paceline.text.tools.formats import THINK, Thought, ToolFormat
from paceline.text.tools.growing_text import GrowingText, Wait, marks_of

LETTERS = string.ascii_letters + string.digits
ID_LENGTH = 9  # Mistral's templates take no other
CONTENT, REASONING = "content", REASONING_KEYS[0]


@dataclass(slots=True)  # not frozen, which takes five times as long to make
class MessageDelta:
    """New content, new reasoning, or a part of a call. index: number of the call.
    A call's first delta has its id and name, and no arguments; the others have parts of its arguments."""

    content: str = ""
    reasoning: str = ""
    index: int | None = None
    id: str = ""
    name: str = ""
    arguments: str = ""

    def openai(self) -> dict[str, Any]:
        """Return the `delta` of a chunk in OpenAI's format."""
        if self.index is None:
            return {REASONING: self.reasoning} if self.reasoning else {"content": self.content}
        own = _openai(self) if self.id else {"function": {"arguments": self.arguments}}
        return {"tool_calls": [{"index": self.index, **own}]}


@dataclass(frozen=True)
class AssistantMessage:
    """A whole answer. calls: a delta with everything for each."""

    content: str
    calls: tuple[MessageDelta, ...]
    reasoning: str = ""

    @classmethod
    def of(cls, deltas: Iterable[MessageDelta]) -> AssistantMessage:
        deltas = list(deltas)
        arguments: dict[int | None, list[str]] = {}
        for delta in deltas:
            arguments.setdefault(delta.index, []).append(delta.arguments)
        calls = (replace(delta, arguments="".join(arguments[delta.index])) for delta in deltas if delta.id)
        content, reasoning = (delta.content for delta in deltas), (delta.reasoning for delta in deltas)
        return cls("".join(content), tuple(calls), "".join(reasoning))

    def openai(self) -> dict[str, Any]:
        """Return an assistant's message in OpenAI's format."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message[REASONING] = self.reasoning
        if self.calls:
            message |= {"content": self.content or None, "tool_calls": [_openai(call) for call in self.calls]}
        return message


def _openai(call: MessageDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def new_id() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(ID_LENGTH))


class AnswerParser:
    """An incremental parser of one answer. White space around thoughts, before calls, and at the end after
    calls is dropped. Nothing in a thought is a call; a thought that does not end is one to the end.
    tools: those that may be called, none to find thoughts only.
    prefix: the beginning of the answer, if it is part of the prompt. thinking: the answer, without the
    prefix, begins within a thought."""

    def __init__(
        self,
        form: ToolFormat,
        tools: Collection[Tool],
        ids: Callable[[], str] = new_id,
        prefix: str = "",
        *,
        thought: Thought | None = THINK,
        thinking: bool = False,
    ) -> None:
        self._ids, self._thought, self._skipped = ids, thought, form.skipped
        self._text = GrowingText(prefix)
        starts = (*form.start_markers, *("{[" if form.accepts_plain_json else "")) if tools else ()
        self._marks = marks_of((*starts, *form.skipped, *([thought.open] if thought else [])))
        self._deltas: list[MessageDelta] = []
        self._parts: list[str] = []  # of the same kind, for the next delta
        parameters = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
        self._calls = CallParser(self._text, form, parameters, self._begin_call, self._parts.append)
        self._kind: str | int = ""  # content, reasoning, or the index of a call
        self._space: list[str] = []  # white space that is dropped at the end, or before a call
        self._is_fresh = True  # no content since the beginning, or the last call or thought
        self._trims = False  # white space that comes next is dropped
        self.n_calls = 0
        self._run = self._parse_answer(thinking=thinking)

    def parse(self, text: str, *, cut: bool = False) -> AssistantMessage:
        """Parse a whole answer. cut: see `finish`."""
        return AssistantMessage.of([*self.feed(text), *self.finish(cut=cut)])

    def feed(self, text: str) -> list[MessageDelta]:
        """Add text of any length; return the new deltas."""
        self._text.feed(text)
        next(self._run, None)
        if self._parts:
            self._flush()
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self, *, cut: bool = False) -> list[MessageDelta]:
        """Return the last deltas. cut: the answer was truncated. Then a mark and what follows are
        dropped before a call's name, and arguments stay open where they end: nobody runs half a call."""
        self._text.ended, self._text.truncated = True, cut
        return self.feed("")

    def _parse_answer(self, *, thinking: bool) -> Wait[None]:
        text, thought = self._text, self._thought
        if thinking:
            yield from self._parse_thought()
        while True:
            size, mark = text.find(self._marks)
            self._emit_text(CONTENT, text.take(size))
            if not mark and not text.ended:
                yield
                continue
            if not mark:
                break
            if mark in self._skipped:
                text.take(len(mark))
                self._is_fresh = True
                continue
            if thought and mark == thought.open:
                if self._is_fresh:
                    text.take(len(mark))
                    yield from self._parse_thought()
                    continue
            elif mark not in "{[" or self._is_fresh or any("\n" in part for part in self._space):
                text.retain()
                text.take(len(mark) if mark not in "{[" else 0)
                is_call = yield from self._calls.parse(mark)
                if text.is_cut and (is_call or (mark not in "{[" and "`" not in mark)):
                    return
                if is_call:
                    self._is_fresh, self._trims = True, False
                    continue
                text.rewind()
            self._emit_text(CONTENT, text.take(len(mark)))
        rest = text.take(len(text.text))
        if len(rest) == 1 or rest.startswith("`"):  # else the beginning of a mark, of a truncated answer
            self._emit_text(CONTENT, rest)
        if not self._trims and not (self._is_fresh and self.n_calls):
            self._emit(CONTENT, "".join(self._space))

    def _parse_thought(self) -> Wait[None]:
        """Emit reasoning up to its end."""
        assert self._thought
        text, close = self._text, marks_of((self._thought.close,))
        self._space, self._trims = [], True
        while True:
            size, mark = text.find(close)
            self._emit_text(REASONING, text.take(size))
            if mark or text.ended:
                text.take(len(mark) or len(text.text))
                break
            yield
        self._space, self._trims, self._is_fresh = [], True, True

    def _emit_text(self, kind: str, text: str) -> None:
        """Emit text but for white space at its end, which waits for what follows."""
        body = text.rstrip()
        if body:
            text, space = "".join([*self._space, body]), text[len(body) :]
            self._emit(kind, text.lstrip() if self._trims else text)
            self._space, self._trims = [space] if space else [], False
            self._is_fresh &= kind != CONTENT
        elif text:
            self._space.append(text)

    def _begin_call(self, name: str, id_: str) -> None:
        self._flush()
        self._space, self._kind = [], self.n_calls
        self._deltas.append(MessageDelta(index=self.n_calls, id=id_ or self._ids(), name=name))
        self.n_calls += 1

    def _emit(self, kind: str, text: str) -> None:
        if kind != self._kind:
            self._flush()
            self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        text, kind = "".join(self._parts), self._kind
        self._parts.clear()
        if not text:
            return
        if isinstance(kind, int):
            delta = MessageDelta("", "", kind, "", "", text)
        else:
            delta = MessageDelta(text) if kind == CONTENT else MessageDelta("", text)
        self._deltas.append(delta)
