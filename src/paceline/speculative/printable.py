"""Text that others wrote, and sizes, fit for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Names come from files: no line breaks, no terminal sequences, and no bytes that are no text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def truncated(text: str, most: int = 300) -> str:
    """The same for a message that quotes text of any length."""
    return printable(text if len(text) <= most else f"{text[:most]}...")


def format_count(n: float) -> str:
    """A number of bytes in the unit that suits it: 4.68 GB, 4.70 MB, 1.00 kB, 999 bytes."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:,.2f} {unit}"
    return f"{n:.0f} bytes"
