"""Parsing of tool calls at a position of a text, in all formats."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from paceline.text.messages import Tool
from paceline.text.tools.formats import ToolFormat

MAX_HEAD = 300  # characters up to the end of a function's or parameter's name
MAX_DEPTH = 100  # nested lists and objects

NAMES, ARGUMENTS = ("name", "tool_name", "function"), ("arguments", "parameters")
CALL_KEYS = (*NAMES, *ARGUMENTS, "type", "id", "tool_call_id")
# A call in JSON begins with one of these, apart from white space.
BEGINNINGS = tuple(f'{bracket}"{key}":' for bracket in ("{", "[{") for key in CALL_KEYS)
FIRST_NAME = re.compile(r'\[?\s*\{\s*"(?:tool_)?name"\s*:\s*"([^"\\]*)"')
TOKEN = re.compile(r'[^"{}\[\]]+|"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
SEPARATOR = re.compile(r"\s*[,;]?\s*")  # between the calls of one answer
SPACE = re.compile(r"\s*")
NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Call:
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


_Parsed = tuple[list[Call], int]  # calls, and the position after them


class IncompleteError(Exception):
    """The text so far is the beginning of a call."""


class CallParser:
    """A parser of calls in a text that grows until it has `ended`.
    text: the text without dropped beginnings. start: position of `text` in the whole."""

    def __init__(self, form: ToolFormat, tools: Collection[Tool]) -> None:
        functions = [tool["function"] for tool in tools]
        self._format = form
        self._tools = {function["name"]: function.get("parameters") or {} for function in functions}
        self.text, self.start, self.ended = "", 0, False
        # A JSON value's start, the position up to which it was scanned, and the depth there.
        self._scanned = (-1, 0, 0)

    def drop(self, size: int) -> None:
        """Drop the beginning of the text."""
        self.text, self.start = self.text[size:], self.start + size

    def parse_calls(self, opener: str, at: int) -> _Parsed:
        """Parse the calls behind an opener, and their end markers. Raises IncompleteError."""
        at = self._skip(at)
        if self.text[at] in "{[":
            calls, end = self.parse_json_calls(at, strict=opener.startswith("`"))
        elif self._format.pairs is not None:
            calls, end = self._parse_key_value_call(at)
        else:
            calls, end = self._parse_named_call(at)
        for mark in self._format.start_markers[opener] if calls else ():
            after = self._skip(end, needed=False)
            if self.text.startswith(mark, after):
                end = after + len(mark)
            elif mark.startswith(self.text[after:]):
                if not self.ended:
                    raise IncompleteError
                end = len(self.text)
        return calls, end

    def _skip(self, at: int, *, needed: bool = True) -> int:
        """Return the position after white space. needed: raise IncompleteError at the end of the text."""
        found = SPACE.match(self.text, at)
        assert found is not None
        if needed and found.end() == len(self.text):
            raise IncompleteError
        return found.end()

    def parse_json_calls(self, at: int, *, strict: bool) -> _Parsed:
        """Parse JSON objects, in a list or in sequence. strict: require arguments. Raises IncompleteError."""
        calls: list[Call] = []
        end = at
        try:
            while self.text.startswith(("{", "["), at) and (size := self._json_length(at)):
                values = _load_json(self.text[at : at + size])
                objects = values if isinstance(values, list) else [values]
                parsed = [self._call(value, strict=strict) for value in objects]
                if None in parsed:
                    break
                calls += [call for call in parsed if call is not None]
                end = at + size
                between = SEPARATOR.match(self.text, end)
                assert between is not None
                at = between.end()
                if at == len(self.text):
                    raise IncompleteError
        except IncompleteError:
            if not (self.ended and calls):
                raise
        return calls, end

    def _json_length(self, at: int) -> int:
        """Return the length of the JSON object or list of calls at `at`; 0 if there is none."""
        head = "".join(self.text[at : at + MAX_HEAD].split())
        if not any(beginning.startswith(head[: len(beginning)]) for beginning in BEGINNINGS):
            return 0
        name = FIRST_NAME.match(self.text, at)
        return 0 if name and name[1] not in self._tools else self._balanced_length(at)

    def _balanced_length(self, at: int) -> int:
        """Return the length of the JSON object or list at `at`; 0 if it is too deep."""
        start, scanned, depth = self._scanned
        if start != self.start + at:
            start, scanned, depth = self.start + at, self.start + at, 0
        while token := TOKEN.match(self.text, scanned - self.start):
            scanned = self.start + token.end()
            depth += token[0] in ("{", "[")
            depth -= token[0] in ("}", "]")
            if not depth:
                return scanned - start
            if depth > MAX_DEPTH:
                return 0
        self._scanned = start, scanned, depth
        raise IncompleteError

    def _call(self, value: Any, *, strict: bool) -> Call | None:
        """Return the call in a JSON value; None if it is no call of a declared tool."""
        if not isinstance(value, dict):
            return None
        if isinstance(value.get("function"), dict):  # OpenAI's format
            value = value["function"]
        name = next((value[key] for key in NAMES if isinstance(value.get(key), str)), "")
        key = next((key for key in ARGUMENTS if key in value), None)
        if name not in self._tools or (strict and key is None):
            return None
        arguments = value.get(key)
        if isinstance(arguments, str):
            arguments = _load_json(arguments)
        elif arguments is None:
            arguments = {}
        return Call(name, arguments) if isinstance(arguments, dict) else None

    def _parse_named_call(self, at: int) -> _Parsed:
        """Parse a call with its name before the brace of its arguments."""
        brace = self.text.find("{", at, at + MAX_HEAD)
        if brace < 0:
            if self._format.name_pattern and len(self.text) - at < MAX_HEAD:
                raise IncompleteError
            return [], at
        head = self._format.name_pattern
        found = re.fullmatch(rf"\s*{head}\s*", self.text[at:brace]) if head else None
        if not found or found["name"] not in self._tools or not (size := self._balanced_length(brace)):
            return [], at
        end = brace + size
        arguments = _load_json(self.text[brace:end])
        if not isinstance(arguments, dict):
            return [], end
        return [Call(found["name"], arguments, found.groupdict().get("id") or "")], end

    def _parse_key_value_call(self, at: int) -> _Parsed:
        """Parse a call whose arguments are pairs of names and values."""
        text, pairs = self.text, self._format.pairs
        assert pairs is not None
        at = self._match_literal(pairs.before, at) or at
        name = NAME.match(text, at)
        if len(text) in (at, name and name.end()):
            raise IncompleteError
        if not name or name[0] not in self._tools:
            return [], at
        if not (after := self._match_literal(pairs.after, name.end())):
            return [], at
        types = self._tools[name[0]].get("properties") or {}
        pair = pairs.pattern(MAX_HEAD)
        arguments: dict[str, Any] = {}
        while True:
            after = self._skip(after)
            if end := self._match_literal(pairs.end, after):
                return [Call(name[0], arguments)], end
            if not self._match_literal(pairs.open, after):
                return [], at
            found = pair.match(text, after)
            if found is None:
                raise IncompleteError
            key = found[1].strip()
            arguments[key] = _coerce_argument(found[2], types.get(key))
            after = found.end()

    def _match_literal(self, mark: str, at: int) -> int:
        """Return the position after a mark; 0 if it is not there. Raises IncompleteError."""
        if self.text.startswith(mark, at):
            return at + len(mark)
        if mark.startswith(self.text[at:]):
            raise IncompleteError
        return 0


def _load_json(text: str) -> Any:
    """Return a JSON value, or None. Control characters and stray backslashes in strings are accepted."""
    try:
        value = json.loads(ESCAPE.sub(lambda found: found[0] if found[1] else "\\\\", text), strict=False)
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError):
        return None


def _coerce_argument(value: str, schema: Any) -> Any:
    """Return a value in the type of its schema; text if that fails."""
    value = value.removeprefix("\n").removesuffix("\n")
    types = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if "string" in types and not ("null" in types and value == "null"):  # "type" is a name or a list of names
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
