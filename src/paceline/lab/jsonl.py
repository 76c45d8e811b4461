"""Files of JSON lines, as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from paceline.core.errors import UsageError


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers. Raises UsageError for what is no readable text."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); give a .jsonl file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text (byte {error.start}); convert it first") from error
    # Not splitlines(), which also splits at form feeds and others that JSON may hold as they are.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, line
