"""Text that arrives in pieces, and the JSON in it, read letter by letter.

All that reads is a generator: it yields where it waits for more text, so that what it finds does not depend
on where the text was cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Generator
from typing import TypeVar

DEEPEST = 100  # levels of lists and objects in one another
PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # of a string, what stands for itself
WORD = re.compile(r"[-+.A-Za-z0-9]*")
LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null", re.ASCII)
HEX = re.compile(r"[0-9a-fA-F]{4}")
SPACE = " \t\r\n"

T = TypeVar("T")
Reading = Generator[None, None, T]


class JsonText:
    """text: all of it so far that may still be read. base: how much of the beginning has been left out. at:
    where it is read. ended: there is no more to come."""

    def __init__(self) -> None:
        self.text, self.base, self.at = "", 0, 0
        self.ended = False

    def add(self, text: str) -> None:
        self.text += text

    def forget(self) -> None:
        """What has been read is not read again."""
        self.text, self.base, self.at = self.text[self.at :], self.base + self.at, 0

    def certain(self, literals: Collection[str]) -> int:
        """Where the beginning of one of these may stand at the end of the text."""
        if not self.ended:
            for size in range(min(max(map(len, literals)) - 1, len(self.text) - self.at), 0, -1):
                if any(one.startswith(self.text[-size:]) for one in literals):
                    return len(self.text) - size
        return len(self.text)

    def peek(self, ahead: int = 0) -> Reading[str]:
        """The next letter, or one after it; "" at the end."""
        while self.at + ahead >= len(self.text):
            if self.ended:
                return ""
            yield
        return self.text[self.at + ahead]

    def space(self) -> Reading[str]:
        """Read white space; the letter after it, which is not read."""
        while (letter := (yield from self.peek())) and letter in SPACE:
            self.at += 1
        return letter

    def literal(self, wanted: str) -> Reading[bool]:
        """Read it where the text goes on with it."""
        while not self.text.startswith(wanted, self.at):
            if self.ended or not wanted.startswith(self.text[self.at :]):
                return False
            yield
        self.at += len(wanted)
        return True

    def match(self, pattern: str) -> Reading[str]:
        """Read as many letters as match."""
        one, start = re.compile(pattern), self.at
        while True:
            found = one.match(self.text, start)
            end = found.end() if found else start
            if end < len(self.text) or self.ended:
                self.at = end
                return self.text[start:end]
            yield

    def until(self, end: str, most: int = 1 << 30) -> Reading[str | None]:
        """Read it with all before it, which is told; None where it does not come within so many letters."""
        start = seen = self.at
        while (found := self.text.find(end, seen)) < 0:
            seen = max(start, len(self.text) - len(end) + 1)
            if self.ended or seen - start > most:
                return None
            yield
        if found - start > most:
            return None
        self.at = found + len(end)
        return self.text[start:found]

    def word(self) -> Reading[str | None]:
        """Read a string; None where it is none."""
        kept: list[str] = []
        if (yield from self.peek()) != '"' or not (yield from self.quoted(kept)):
            return None
        return str(json.loads("".join(kept)))

    def value(self, kept: list[str], depth: int = 0) -> Reading[bool]:
        """Read a value into `kept`, which may be emptied meanwhile: whether it is whole. What is kept is
        always the beginning of a JSON value."""
        letter = yield from self._space(kept)
        if letter == '"':
            return (yield from self.quoted(kept))
        if letter not in ("{", "["):
            return (yield from self._plain(kept))
        if depth == DEEPEST:
            return False
        end = "}" if letter == "{" else "]"
        self._take(kept)
        letter = yield from self._space(kept)
        if letter == end:
            self._take(kept)
            return True
        while True:
            if end == "}":
                if letter != '"' or not (yield from self.quoted(kept)):
                    return False
                if (yield from self._space(kept)) != ":":
                    return False
                self._take(kept)
            if not (yield from self.value(kept, depth + 1)):
                return False
            letter = yield from self._space(kept)
            if letter not in (",", end):
                return False
            self._take(kept)
            if letter == end:
                return True
            letter = yield from self._space(kept)

    def quoted(self, kept: list[str]) -> Reading[bool]:
        """A string. Control characters and backslashes that escape nothing, as models write them, are
        escaped."""
        self._take(kept)
        while True:
            if found := PLAIN.match(self.text, self.at):
                kept.append(found.group())
                self.at = found.end()
            letter = yield from self.peek()
            if letter == '"':
                self._take(kept)
                return True
            if letter == "\\":
                if not (yield from self._escape(kept)):
                    return False
            elif letter and letter < " ":
                kept.append(json.dumps(letter)[1:-1])
                self.at += 1
            elif not letter:
                return False

    def _escape(self, kept: list[str]) -> Reading[bool]:
        """False where the text ends in it."""
        escaped = yield from self.peek(1)
        if not escaped:
            return False
        size = 2 if escaped in '"\\/bfnrt' else 0
        if escaped == "u":
            last = yield from self.peek(5)
            if not last:
                return False
            size = 6 if HEX.fullmatch(self.text, self.at + 2, self.at + 6) else 0
        kept.append(self.text[self.at : self.at + size] if size else "\\\\")
        self.at += size or 1
        return True

    def _plain(self, kept: list[str]) -> Reading[bool]:
        """A number, true, false or null."""
        start = self.at
        word = yield from self.match(WORD.pattern)
        if LITERAL.fullmatch(word):
            kept.append(word)
            return True
        self.at = start
        return False

    def _space(self, kept: list[str]) -> Reading[str]:
        while (letter := (yield from self.peek())) and letter in SPACE:
            self._take(kept)
        return letter

    def _take(self, kept: list[str]) -> None:
        kept.append(self.text[self.at])
        self.at += 1
