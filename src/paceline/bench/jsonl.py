"""Files of JSON lines, read a line at a time, so that a log may be larger than the memory."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.speculative.errors import UsageError
from paceline.speculative.printable import truncated

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 1 << 26  # bytes of a line; a longer one is no line but some other kind of file
ADVICE = "write one JSON object a line"
MARK = "\ufeff"  # what Windows' editors put before a text


class LineError(UsageError):
    """A line that cannot be used. Its text is the reason alone: what stands in the others may still do."""


@dataclass(frozen=True, slots=True)
class Line:
    """start: its first byte's place in the file. data: without the end of the line; of one longer than
    LONGEST, a little more than that."""

    number: int
    start: int
    data: bytes


def raw_lines(path: Path) -> Iterator[Line]:
    """Yield the lines that are not empty, each read when it is asked for. Raises UsageError."""
    try:
        with path.open("rb") as file:
            start = 0
            for number in count(1):
                data = piece = file.readline(LONGEST + 1)
                if not data:
                    return
                end = start + len(data)  # a pipe does not tell where it is
                while len(piece) > LONGEST and not piece.endswith(b"\n"):
                    piece = file.readline(LONGEST + 1)
                    end += len(piece)
                if not data.isspace():
                    yield Line(number, start, data.removesuffix(b"\n"))
                start = end
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a .jsonl file") from error


def text_of(line: Line) -> str:
    """Raises LineError for what is no text, or not of one line."""
    if len(line.data) > LONGEST:
        raise LineError(f"is longer than {LONGEST >> 20} MiB; {ADVICE}")
    try:
        text = line.data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LineError(f"is not UTF-8 text (byte {error.start}); convert it first") from error
    return text if line.start else text.removeprefix(MARK)


def object_of(line: Line) -> dict[str, Any]:
    """Raises LineError for what is no JSON object."""
    try:
        one = json.loads(text_of(line))
    except (ValueError, RecursionError) as error:
        raise LineError(f"is no JSON ({error}); {ADVICE}") from error
    if not isinstance(one, dict):
        raise LineError(f"is no JSON object; {ADVICE}")
    return one


def describe(error: ValidationError) -> str:
    """Return the first thing that is wrong, in one printable line."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "it"
    return truncated(f"{where} is {reprlib.repr(first['input'])}: {first['msg']}", 200)
