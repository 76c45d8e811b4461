"""A text that arrives in pieces, and generators that parse it. A generator yields where it needs more text.

The result depends on the text alone, never on where the pieces end. The time is linear in its length."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TypeVar

from paceline.text.messages import MAX_JSON_DEPTH

T = TypeVar("T")
Wait = Generator[None, None, T]
Write = Callable[[str], object]

MAX_HEAD = 300  # characters up to the end of a function's or parameter's name

SPACE = re.compile(r"\s{0,99}")  # before a mark
PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
ESCAPE_BEGINNING = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
BARE_KEY = re.compile(r"\s{0,99}([\w.$-]{1,100})\s{0,9}:")
SCALAR = re.compile(r'\s{0,99}([^\s,:"{}\[\]]{1,150})(?=[\s,}\]])')
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
CONSTANTS = {word: word.lower() for word in ("true", "false", "null", "True", "False")} | {"None": "null"}


class Marks:
    """Texts to find in a growing text."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
        self.first = re.compile("|".join({re.escape(text[0]) for text in texts}) or "(?!)")
        self.beginnings = {text[:size] for text in texts for size in range(len(text))}
        self.longest = max(map(len, texts), default=1) - 1  # of the beginnings


marks_of = lru_cache(maxsize=256)(Marks)


class GrowingText:
    """A text of which the first `at` characters are parsed. ended: there will be no more.
    truncated: it ended before the model did. is_short: a mark or a pattern was missing because of the end."""

    def __init__(self, text: str = "") -> None:
        self.text, self.at = text, 0
        self.ended = self.truncated = self.is_short = False
        self._retained: list[str] | None = None  # what was parsed from `_start` on, before the last text came
        self._start = 0

    @property
    def is_cut(self) -> bool:
        """True if truncation broke off what was parsed last."""
        return self.truncated and self.is_short

    def feed(self, text: str) -> None:
        """Add text."""
        if self._retained is not None:
            self._retained.append(self.text[self._start : self.at])
        self.text = self.text[self.at :] + text
        self.at = self._start = 0

    def retain(self) -> None:
        """Begin to retain what is parsed, for `rewind`."""
        self._retained, self._start, self.is_short = [], self.at, False

    def release(self) -> None:
        self._retained = None

    def rewind(self) -> None:
        """Return to where `retain` was called."""
        if self._retained:
            self.text = "".join([*self._retained, self.text])
        self.at, self._retained = self._start, None

    def take(self, size: int) -> str:
        """Return the next characters, which are parsed then."""
        taken = self.text[self.at : self.at + size]
        self.at += size
        return taken

    def find(self, marks: Marks) -> tuple[int, str]:
        """Return the number of characters before the first mark, and the mark; "" if there is none so far."""
        start, size, is_final = self.at, len(self.text), self.ended and not self.truncated
        while found := marks.first.search(self.text, start):
            start = found.start()
            if not is_final and size - start <= marks.longest and self.text[start:] in marks.beginnings:
                return start - self.at, ""
            if mark := marks.pattern.match(self.text, start):
                return start - self.at, mark[0]
            start += 1
        return size - self.at, ""

    def peek(self, *texts: str) -> Wait[tuple[str, int]]:
        """Return the longest of the texts that is next but for white space ("" if none is), and the length of
        both."""
        marks = marks_of(texts)
        while True:
            space = SPACE.match(self.text, self.at)
            start = space.end() if space else self.at
            found = marks.pattern.match(self.text, start)
            is_beginning = len(self.text) - start <= marks.longest and self.text[start:] in marks.beginnings
            if not is_beginning or self.ended:
                self.is_short |= is_beginning and not found
                return found[0] if found else "", (found.end() if found else start) - self.at
            yield

    def accept(self, *texts: str) -> Wait[str]:
        """Return the longest of the texts that is next but for white space, which is parsed then; else ""."""
        found, size = yield from self.peek(*texts)
        self.at += size if found else 0
        return found

    def match(self, pattern: re.Pattern[str]) -> Wait[re.Match[str] | None]:
        """Match a pattern within MAX_HEAD characters. More text must not change how the pattern matches."""
        while True:
            found = pattern.match(self.text, self.at, self.at + MAX_HEAD)
            is_short = not found and len(self.text) - self.at < MAX_HEAD
            if not is_short or self.ended:
                self.is_short |= is_short
                self.at = found.end() if found else self.at
                return found
            yield

    def copy_json(self, write: Write, quote: str = '"', before: str = "", depth: int = 0) -> Wait[bool]:
        """Write `before` and the JSON value that is next; return whether it is complete.
        Accepted are control characters and stray backslashes in strings, a comma before an end, keys without
        quotes, Python's constants, and strings in `quote`. A broken value is closed where it breaks. One that
        truncation breaks off stays open, so that nobody takes it for a whole one."""
        opener, size = yield from self.peek(quote, '"', "{", "[")
        if not opener:
            found = yield from self.match(SCALAR)
            value = found and (found[1] if NUMBER.fullmatch(found[1]) else CONSTANTS.get(found[1]))
            write(before + value if value else "")
            self.at = found.start() if found and not value else self.at
            return bool(value)
        if depth > MAX_JSON_DEPTH:
            return False
        self.at += size
        write(before + opener.replace(quote, '"'))
        end = {"{": "}", "[": "]"}.get(opener, '"')
        if end == '"':
            is_whole = yield from self.copy_string(write, opener, ",", "}", "]")
        else:
            is_whole = yield from self._copy_items(write, quote, end, depth + 1)
        if is_whole or not self.is_cut:
            write(end)
        return is_whole

    def _copy_items(self, write: Write, quote: str, end: str, depth: int) -> Wait[bool]:
        """Write the rest of a list or object, without the end; return whether it is complete."""
        before = ""
        while True:
            mark = yield from self.accept(end, *([","] if before else []))
            if mark == "," and before:
                mark = yield from self.accept(end)
            elif before and not mark:
                return False
            if mark:
                return True
            if end == "}":
                if not (key := (yield from self._parse_key(quote))):
                    return False
                before += key + ": "
            if not (yield from self.copy_json(write, quote, before, depth)):
                return False
            before = ", "

    def _parse_key(self, quote: str) -> Wait[str]:
        """Return the key that is next, as JSON, with its colon parsed; "" if there is none."""
        if not (opener := (yield from self.accept(quote, '"'))):
            found = yield from self.match(BARE_KEY)
            return encode_basestring(found[1]) if found else ""
        parts: list[str] = []
        is_whole = yield from self.copy_string(parts.append, opener, ":")
        return f'"{"".join(parts)}"' if is_whole and (yield from self.accept(":")) else ""

    def copy_string(self, write: Write, quote: str, *following: str) -> Wait[bool]:
        """Write the rest of a JSON string, without the end; return whether it is complete."""
        if quote != '"':
            return (yield from self.copy_text(lambda part: write(escaped(part)), (quote,), following))
        while True:
            if found := PLAIN.match(self.text, self.at):
                write(found[0])
                self.at = found.end()
            letter = self.text[self.at : self.at + 1]
            if letter == '"':
                self.at += 1
                return True
            if letter == "\\" and (found := ESCAPE.match(self.text, self.at)):
                write(found[0])
                self.at = found.end()
            elif letter and (self.ended or not ESCAPE_BEGINNING.fullmatch(self.text, self.at)):
                write(escaped(letter))
                self.at += 1
            elif self.ended:
                self.is_short = True
                return False
            else:
                yield

    def copy_text(
        self,
        write: Write,
        marks: tuple[str, ...],
        following: tuple[str, ...],
        ends: tuple[str, ...] = (),
        openers: tuple[str, ...] = (),
    ) -> Wait[bool]:
        """Write the text before the last of the marks that fits; return whether there is one.
        A mark fits if a text of `following` or `ends` is next, or nothing. Before `following` it is the last.
        Before `ends` it is the last unless another one fits before the next of `openers`."""
        first, later = marks_of(marks), marks_of((*marks, *openers))
        pending: list[str] = []  # text from a mark before `ends` on
        while True:
            size, found = self.find(later if pending else first)
            if size:
                (pending.append if pending else write)(self.take(size))
            if not found and not self.ended:
                yield
                continue
            if found not in marks:
                break
            here, self.is_short = self.take(len(found)), False
            after, _ = yield from self.peek(*following, *ends)
            if after or self.is_short:
                write("".join(pending))
                if after in following:
                    return True
                pending = [here]
            else:
                (pending.append if pending else write)(here)
        self.is_short |= not pending
        self.feed("")
        self.text, self.at = "".join([*pending, self.text]), len("".join(pending[:1]))
        return bool(pending)


def escaped(text: str) -> str:
    """Return a text as part of a JSON string."""
    return encode_basestring(text)[1:-1]
