"""Untrusted text and byte counts, formatted for a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Escape line breaks, terminal control sequences and invalid bytes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def truncated(text: str, most: int = 300) -> str:
    """Return the first `most` characters of `printable(text)`."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}..."


def count(n: int, noun: str) -> str:
    """Return a number with its noun: 1 token, 2,000 tokens."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def format_bytes(n: float) -> str:
    """Format a number of bytes: 4.68 GB, 4.70 MB, 1.00 kB, 999 bytes."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if n >= size:
            return f"{n / size:,.2f} {unit}"
    return f"{n:.0f} bytes"
