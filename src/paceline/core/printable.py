"""Text that others wrote, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Names come from files: no line breaks, no terminal sequences, and no bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = 300) -> str:
    """The same for a message that quotes text of any length."""
    return printable(text if len(text) <= most else f"{text[:most]}...")
