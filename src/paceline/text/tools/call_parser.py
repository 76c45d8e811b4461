"""Parsing of tool calls in all formats, as the text of an answer arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.text.json_schema import STRING, json_argument, property_types
from paceline.text.tools.formats import KeyValueArguments, ToolFormat
from paceline.text.tools.growing_text import GrowingText, Wait, Write, escaped

NAMES, ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")
CALL_KEYS = (*NAMES, *ARGUMENTS, "type", "id", "tool_call_id")  # a call in JSON begins with one of these
KEY = re.compile(r'\s{0,99}"([^"\\]{0,99})"\s{0,99}:')
VALUE = re.compile(r'\s{0,99}"([^"\\]{0,99})"')


@dataclass
class _JsonCall:
    """A call in a JSON object, as far as it is parsed. early: arguments before the call begins."""

    name: str = ""
    started: bool = False
    has_arguments: bool = False
    early: list[str] = field(default_factory=list)


@dataclass
class CallParser:
    """A parser of the calls behind a mark. tools: the parameters of each.
    begin: called with the name and the id of a call. write: called with parts of its arguments, as JSON."""

    text: GrowingText
    form: ToolFormat
    tools: Mapping[str, Any]
    begin: Callable[[str, str], object]
    write: Write

    def parse(self, opener: str) -> Wait[bool]:
        """Parse calls and their end marks; return whether there was one. An opener of plain JSON is unparsed.
        A call that breaks off is closed, and the text behind is none of it."""
        ends, text = self.form.start_markers.get(opener), self.text
        start, _ = yield from text.peek("{", "[")
        if start:
            is_whole = yield from self._parse_json_calls(strict=ends is None or "`" in opener)
        else:
            if not self.form.head:
                return False
            found = yield from text.match(re.compile(self.form.head))
            if not found or found["name"] not in self.tools:
                return False
            if self.form.pairs:
                is_whole = yield from self._parse_pairs(found["name"], self.form.pairs, ends or ())
            else:
                self._commit(found["name"], found.groupdict().get("id") or "")
                is_whole = yield from text.copy_json(self.write, self.form.quote)
        if is_whole is None:
            return False
        for mark in ends if ends and is_whole else ():
            yield from text.accept(mark)
            if text.ended and mark.startswith(text.text[text.at :].strip()):
                text.at = len(text.text)  # the answer ends within the mark
        return True

    def _commit(self, name: str, id_: str = "") -> None:
        """Begin a call: from here on, the text is no content."""
        self.text.release()
        self.begin(name, id_)

    def _parse_json_calls(self, *, strict: bool) -> Wait[bool | None]:
        """Parse calls in a list or in sequence, each an object. Return whether all are complete, or None if
        there are none. strict: a call has arguments."""
        text = self.text
        is_list = yield from text.accept("[")
        is_whole = yield from self._parse_json_call(strict=strict)
        while is_whole:
            if is_list and (yield from text.accept("]")):
                return True
            text.retain()
            yield from text.accept(",", ";")
            after, _ = yield from text.peek("{")
            following = (yield from self._parse_json_call(strict=strict)) if after else None
            if following is None:
                text.rewind()
                return not is_list
            is_whole = following
        return is_whole

    def _parse_json_call(self, *, strict: bool) -> Wait[bool | None]:
        """Parse a call in an object; return whether it is complete, or None if it is no call."""
        text, call, depth, is_first = self.text, _JsonCall(), 1, True
        is_whole = bool((yield from text.accept("{")))
        while is_whole and depth:
            mark = yield from text.accept("}", *([] if is_first else [","]))
            if mark == "}":
                depth -= 1
                continue
            quote, _ = yield from text.peek('"')
            found = (yield from text.match(KEY)) if quote else None
            if not found or (is_first and found[1] not in CALL_KEYS):
                is_whole = False
            elif found[1] == "function" and depth == 1 and (yield from text.accept("{")):
                depth, is_first = depth + 1, True
            else:
                is_whole, is_first = (yield from self._parse_member(call, found[1], strict=strict)), False
        if not call.started and not (is_whole and call.name and (call.has_arguments or not strict)):
            return None
        self._begin_json_call(call)
        if not call.has_arguments and not text.is_cut:
            self.write("{}")
        return is_whole

    def _parse_member(self, call: _JsonCall, key: str, *, strict: bool) -> Wait[bool]:
        """Parse a value in the object of a call; return whether it is complete and may be there."""
        text = self.text
        kind, size = yield from text.peek("{", '"')
        if key in NAMES and not call.name:
            found = (yield from text.match(VALUE)) if kind == '"' else None
            if not found or found[1] not in self.tools:
                return False
            call.name = found[1]
            if not strict:
                self._begin_json_call(call)
            return True
        if key not in ARGUMENTS or call.has_arguments or not kind:
            return (yield from text.copy_json(len))
        if kind == "{":
            call.has_arguments = True
            if call.name:
                self._begin_json_call(call)
            return (yield from text.copy_json(self.write if call.started else call.early.append))
        text.at += size
        parts: list[str] = []
        is_whole = yield from text.copy_string(parts.append, '"')
        written = json.loads(f'"{"".join(parts)}"')
        value = _object_in(written) or (written if is_whole and call.started else "")
        call.has_arguments = bool(value)
        (self.write if call.started else call.early.append)(value)
        return is_whole

    def _begin_json_call(self, call: _JsonCall) -> None:
        if not call.started:
            call.started = True
            self._commit(call.name)
            self.write("".join(call.early))

    def _parse_pairs(self, name: str, pairs: KeyValueArguments, ends: tuple[str, ...]) -> Wait[bool | None]:
        """Parse arguments that are pairs of names and values, as `_parse_json_call` does. Their end may be
        missing before the end marks of the call."""
        text, write, before = self.text, self.write, "{"
        pattern = re.compile(rf"(.{{0,200}}?){pairs.middle}", re.DOTALL)
        openers = tuple(self.form.start_markers)
        after, _ = yield from text.peek(pairs.open, pairs.end)
        if not after:
            return None
        self._commit(name)
        while True:
            mark = yield from text.accept(pairs.open, pairs.end)
            found = (yield from text.match(pattern)) if mark == pairs.open else None
            if not found:
                break
            key = found[1].strip()
            types = property_types(self.tools[name], key)
            before += json.dumps(key, ensure_ascii=False) + ": "
            value: list[str] = []
            copy: Write = value.append
            if types == STRING:
                write(before + '"')
                copy = lambda part: write(escaped(part))  # noqa: E731
            is_whole = yield from text.copy_text(
                copy, pairs.close, (pairs.open,), (pairs.end, *ends), openers
            )
            if not is_whole and text.is_cut:
                return False
            write('"' if types == STRING else before + json_argument("".join(value), types))
            before = ", "
        if not text.is_cut:
            write("{}" if before == "{" else "}")
        after, _ = yield from text.peek(*ends)
        return mark == pairs.end or (not mark and after != "")


def _object_in(text: str) -> str:
    """Return the JSON object that a text is; "" if it is none."""
    try:
        value = json.loads(text, strict=False)
        return json.dumps(value, ensure_ascii=False, allow_nan=False) if isinstance(value, dict) else ""
    except (ValueError, RecursionError):
        return ""
