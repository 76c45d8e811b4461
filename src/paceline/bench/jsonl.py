"""JSON Lines files, read one line at a time, since a log may be larger than the memory."""

from __future__ import annotations

import json
import reprlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.speculative.errors import UsageError
from paceline.speculative.printable import truncated

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 1 << 26  # bytes of a line


class LineError(UsageError):
    """A line that cannot be used; the message is the reason alone."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file. data: without the line end, cut after LONGEST bytes."""

    number: int
    data: bytes


def raw_lines(path: Path) -> Iterator[Line]:
    """Yield the lines that are not empty. Raises UsageError for an unreadable file."""
    try:
        with path.open("rb") as file:
            for number in count(1):
                data = piece = file.readline(LONGEST + 1)
                if not data:
                    return
                while len(piece) > LONGEST and not piece.endswith(b"\n"):
                    piece = file.readline(LONGEST + 1)
                if number == 1:
                    data = data.removeprefix(BOM_UTF8)  # as Windows editors write it
                if data and not data.isspace():
                    yield Line(number, data.removesuffix(b"\n"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a .jsonl file") from error


def object_of(line: Line) -> dict[str, Any]:
    """Return the JSON object of a line. Raises LineError."""
    why = f"is longer than {LONGEST >> 20} MiB"
    if len(line.data) <= LONGEST:
        try:
            if isinstance(value := json.loads(line.data.decode()), dict):
                return value
            why = "is no JSON object"
        except (ValueError, RecursionError) as error:
            why = f"is no JSON ({error})"
    raise LineError(f"{why}; write one JSON object a line")


def whole_objects(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, without lines that a killed process left cut short. Raises UsageError."""
    found: list[dict[str, Any]] = []
    for line in raw_lines(path):
        with suppress(LineError):
            found.append(object_of(line))
    return found


@contextmanager
def located(place: str) -> Iterator[None]:
    """Write a place before the message of a UsageError, also one of pydantic."""
    from pydantic import ValidationError

    try:
        yield
    except (ValidationError, UsageError) as error:
        why = describe(error) if isinstance(error, ValidationError) else error
        raise UsageError(f"{place}: {why}") from error


def describe(error: ValidationError) -> str:
    """Return the first validation error as one printable line."""
    first: Mapping[str, Any] = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "it"
    return truncated(f"{where} is {reprlib.repr(first['input'])}: {first['msg']}", 200)
