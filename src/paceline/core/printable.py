"""Text that others wrote, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Names come from files: no line breaks, no terminal sequences, and no bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
