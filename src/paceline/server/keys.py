"""Files of API keys."""

from __future__ import annotations

from pathlib import Path

from paceline.speculative.errors import UsageError


def keys_of(file: Path, text: str) -> list[str]:
    """Return the keys in a file's text, one per line. Raises UsageError without any: a server without keys
    would answer everybody."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{file}: holds no key; write one a line")
    return keys
