"""API keys that were given one by one, or in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paceline.speculative.errors import UsageError


def in_file(file: Path) -> list[str]:
    """One a line. Raises UsageError for a file that cannot be read, or holds none."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a text file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8 text (byte {error.start}); convert it first") from error
    return of_text(text, file)


def of_text(text: str, file: Path) -> list[str]:
    """file: where it is from. Raises UsageError where it holds none."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{file}: holds no key; write one a line")
    return keys


def checked(keys: Sequence[str]) -> list[str]:
    """Raises UsageError for keys that HTTP cannot carry."""
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError("an API key must be printable ASCII without spaces, and not empty")
    return list(keys)
