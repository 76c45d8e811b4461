"""Calls of tools, read from the text that a model writes, whole or as it arrives.

A call begins for certain where the name of a declared tool and the first brace of its arguments have been
read; from there on its arguments are passed on as they come. All before that is held back, and is content
where it turns out to be none. Arguments that break off in the middle stay as they are; what is no JSON any
more is content again.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from paceline.engines.conversation import Tool
from paceline.engines.json_text import JsonText, Reading
from paceline.engines.tool_answer import Answer, Delta
from paceline.engines.tool_formats import Format, names, openers

LETTERS = string.ascii_letters + string.digits
ID = 9  # letters of a call's id: Mistral's templates take no other number
SPACES = 100  # of white space before a call that are held back, and left out
HEAD = 300  # characters that a function's name is looked for in

NAMES, ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")
KEYS = (*NAMES, *ARGUMENTS, "type", "id")
FIRST_KEY = re.compile(r'[\s\[{]*(?:"(\w*)("?))?')  # of a JSON object that has come so far
THOUGHT, THOUGHT_END = "<think>", "</think>"  # in a thought nothing is a call


def new_id() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(ID))


def parsed(
    form: Format,
    tools: Collection[Tool],
    text: str,
    ids: Callable[[], str] = new_id,
    *,
    cut: bool = False,
) -> Answer:
    """What a whole answer says, and what it calls of `tools`. cut: see `ToolCallStream.finish`."""
    stream = ToolCallStream(form, tools, ids)
    return Answer.of([*stream.feed(text), *stream.finish(cut=cut)])


class ToolCallStream:
    """One answer, fed with its text piece by piece. Where it was cut does not matter. White space before a
    call is left out, and so is what ends an answer after one."""

    def __init__(
        self,
        form: Format,
        tools: Collection[Tool],
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._format, self._tools, self._ids = form, names(tools), ids
        self._openers = re.compile(f"{openers(form).pattern}|{THOUGHT}")
        self._literals = (*form.opens, THOUGHT)
        self._text = JsonText()
        self._deltas: list[Delta] = []
        self._live: list[str] = []  # of the arguments of the last call, what is not passed on yet
        self._opened: int | None = None  # where what may be a call begins, while it is read
        self._bare = False  # whether it has no mark before it
        self._fresh = True  # nothing was said since the beginning, or since the last call
        self.calls = 0  # so far
        self._reading = self._read()

    def feed(self, text: str) -> list[Delta]:
        self._text.add(text)
        return self._advance()

    def finish(self, *, cut: bool = False) -> list[Delta]:
        """What was held back: the answer is over. cut: by its length, so that the beginning of a call is no
        content, and is left out."""
        if cut and self._begins_a_call():
            self._reading.close()
        self._text.ended = True
        return self._advance()

    def _advance(self) -> list[Delta]:
        next(self._reading, None)
        self._pass_on()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _begins_a_call(self) -> bool:
        """Whether what is held back may be no content."""
        held = self._text.text[self._opened :] if self._opened is not None else ""
        if self._opened is None:
            mark = self._text.text[self._text.at :].strip()
            return len(mark) > 1 and any(one.startswith(mark) for one in self._format.opens)
        if not self._bare:
            return True
        found = FIRST_KEY.match(held)
        key, whole = (found[1] or "", found[2]) if found else ("", "")
        return any(key == one if whole else one.startswith(key) for one in KEYS)

    # What is told.

    def _say(self, end: int) -> None:
        """The text up to there is content."""
        text, start = self._text, self._text.at
        if end > start:
            self._fresh = False
            text.at = end
            said, at = text.text[start:end], text.base + start
            last = self._deltas[-1] if self._deltas else None
            if last and last.index is None and last.start + len(last.content) == at:
                self._deltas[-1] = replace(last, content=last.content + said)
            else:
                self._deltas.append(Delta(content=said, start=at))

    def _begin(self, name: str, call_id: str = "") -> list[str]:
        """A call; what is put into the list is its arguments."""
        self._pass_on()
        self._deltas.append(Delta(index=self.calls, id=call_id or self._ids(), name=name))
        self.calls += 1
        return self._live

    def _pass_on(self) -> None:
        arguments = "".join(self._live)
        self._live.clear()
        if not arguments:
            return
        last, index = self._deltas[-1] if self._deltas else None, self.calls - 1
        if last and last.index == index:
            self._deltas[-1] = replace(last, arguments=last.arguments + arguments)
        else:
            self._deltas.append(Delta(index=index, arguments=arguments))

    # What is read.

    def _read(self) -> Reading[None]:
        text = self._text
        while (found := (yield from self._found(self._openers, self._literals))) is not None:
            opener, before = found.group(), text.at
            if opener == THOUGHT:
                self._say(found.end())
                ended = yield from self._found(re.compile(THOUGHT_END), (THOUGHT_END,))
                self._say(len(text.text) if ended is None else ended.end())
                continue
            bare = opener not in self._format.opens
            line = self._fresh or "\n" in text.text[before : found.start()]
            text.at = found.start() if bare else found.end()
            self._opened, self._bare = text.at, bare
            made = (line or not bare) and (yield from self._call(opener, bare))
            self._opened = None
            if made:
                self._fresh = True
                text.forget()
            else:
                text.at = before
                self._say(found.end())

    def _found(self, wanted: re.Pattern[str], literals: Collection[str]) -> Reading[re.Match[str] | None]:
        """Say all before it, but for white space just before; None at the end of the text."""
        text = self._text
        while True:
            found = wanted.search(text.text, text.at)
            end = text.certain(literals) if found is None else found.start()
            least = max(text.at, end - SPACES)
            while end > least and text.text[end - 1].isspace():
                end -= 1
            self._say(end)
            if found is not None:
                return found
            if text.ended:
                if not (self.calls and self._fresh):
                    self._say(len(text.text))
                return None
            text.forget()
            yield

    def _call(self, opener: str, bare: bool) -> Reading[bool]:
        """A call or a list of them: whether there is one. Where there is, the text is read to its end."""
        letter = yield from self._text.space()
        if letter in ("{", "["):
            made = yield from self._objects(strict=bare or opener.startswith("`"))
        elif self._format.pairs is not None:
            made = yield from self._paired()
        else:
            made = yield from self._headed()
        if made:
            for end in self._format.opens.get(opener, ()):
                after = self._text.at
                yield from self._text.space()
                if not (yield from self._text.literal(end)):
                    self._text.at = after
        return made

    def _objects(self, *, strict: bool) -> Reading[bool]:
        """JSON objects that are calls, in a list or one after the other."""
        text, before = self._text, self.calls
        letter = yield from text.space()
        listed = letter == "["
        if listed:
            text.at += 1
            letter = yield from text.space()
        after = text.at
        while letter == "{":
            made = self.calls
            whole = yield from self._object(strict)
            if self.calls > made:
                after = text.at
            if not whole:
                break
            letter = yield from text.space()
            if letter == "]" and listed:
                after = text.at + 1
                break
            if letter in (",", ";"):
                text.at += 1
                letter = yield from text.space()
            elif listed:
                break
        text.at = after
        return self.calls > before

    def _object(self, strict: bool) -> Reading[bool]:
        """Whether it is a call as a whole. strict: it has arguments."""
        text, inner = self._text, 0
        name, arguments, began = "", "", False
        text.at += 1
        letter = yield from text.space()
        while letter == '"':
            key = yield from text.word()
            if key is None or (yield from text.space()) != ":":
                return False
            text.at += 1
            letter = yield from text.space()
            if key == "function" and letter == "{":  # as OpenAI has it
                text.at, inner = text.at + 1, inner + 1
                letter = yield from text.space()
                continue
            if key in ARGUMENTS and letter == "{" and name and not began:
                began = True
                if not (yield from text.value(self._begin(name))):
                    return False
            else:
                start = text.at
                value: list[str] = []
                if not (yield from text.value(value)):
                    text.at = start
                    return False
                if key in NAMES and not name:
                    name = _word("".join(value))
                    if name not in self._tools:
                        return False
                elif key in ARGUMENTS and not began:
                    arguments = _arguments("".join(value))
                    if not arguments:
                        return False
            if name and arguments and not began:
                began = True
                self._begin(name).append(arguments)
            letter = yield from text.space()
            while letter == "}":
                text.at += 1
                if not inner:
                    if name and not began and not strict:
                        began = True
                        self._begin(name).append("{}")
                    return began
                inner -= 1
                letter = yield from text.space()
            if letter != ",":
                return False
            text.at += 1
            letter = yield from text.space()
        return False

    def _headed(self) -> Reading[bool]:
        """A call whose name stands before the brace of its arguments."""
        text = self._text
        head = (yield from text.until("{", HEAD)) if self._format.head else None
        found = re.fullmatch(rf"\s*{self._format.head}\s*", head) if head is not None else None
        if not found or (name := found["name"]) not in self._tools:
            return False
        text.at -= 1
        yield from text.value(self._begin(name, found.groupdict().get("id") or ""))
        return True

    def _paired(self) -> Reading[bool]:
        """A call whose arguments are no JSON: told when it is whole."""
        text, pairs = self._text, self._format.pairs
        assert pairs is not None
        yield from text.literal(pairs.before)
        name = yield from text.match(r"[A-Za-z0-9_.-]+")
        if name not in self._tools or not (yield from text.literal(pairs.after)):
            return False
        types = self._tools[name].get("properties") or {}
        arguments: dict[str, Any] = {}
        while True:
            yield from text.space()
            if (yield from text.literal(pairs.end)):
                self._begin(name).append(json.dumps(arguments, ensure_ascii=False))
                return True
            if not (yield from text.literal(pairs.open)):
                return False
            key = yield from text.until(pairs.middle[0], HEAD)
            for more in pairs.middle[1:]:
                yield from text.space()
                if not (yield from text.literal(more)):
                    return False
            value = yield from text.until(pairs.close)
            if key is None or value is None:
                return False
            arguments[key.strip()] = _typed(value, types.get(key.strip()))


def _word(value: str) -> str:
    """A JSON string's text; "" where it is another value."""
    return str(json.loads(value)) if value.startswith('"') else ""


def _arguments(value: str) -> str:
    """A JSON object, also where it is told as a string; "" where it is something else."""
    if value == "null":
        return "{}"
    try:
        said = _word(value) or value
        return said if isinstance(json.loads(said), dict) else ""
    except (ValueError, RecursionError):
        return ""


def _typed(value: str, schema: Any) -> Any:
    """A value that stands for itself, as its schema has it: text unless it is to be something else."""
    value = value.removeprefix("\n").removesuffix("\n")
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in types and not ("null" in types and value == "null"):  # of a name, or of a list of them
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
