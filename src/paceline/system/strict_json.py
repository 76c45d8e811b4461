"""JSON that somebody else wrote, read so that nothing later stumbles over it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

DEEPEST = 100  # lists and objects in one another; Python's own limit depends on who calls
MOST_DIGITS = 300  # of a whole number: a float can still hold it

_TEXT = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# An escape sequence, each read once from the left: a pair of surrogates, a lone one, or any other.
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|(?P<lone>{_HIGH}|{_LOW})|.)", re.DOTALL)


def loads(said: str | bytes) -> Any:
    """The value of a JSON text, whose length is the caller's to limit. Raises ValueError, with the reason in
    a few words, for what is no JSON, for nesting beyond DEEPEST, and for numbers that are none (NaN,
    Infinity) or too large. Half a surrogate pair, which no encoding takes, becomes U+FFFD."""
    text = said.decode("utf-8") if isinstance(said, bytes) else said
    if text.count("[") + text.count("{") > DEEPEST and _depth(text) > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} deep")
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPE.sub(_whole, text)
    return json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _depth(text: str) -> int:
    depth = deepest = 0
    for sign in re.findall(r"[][{}]", _TEXT.sub("", text)):
        depth += 1 if sign in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _whole(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["lone"] else escape[0]


def _constant(said: str) -> Any:
    raise ValueError(f"{said} is no number")


def _float(said: str) -> float:
    value = float(said)
    if not math.isfinite(value):
        raise ValueError(f"{said[:20]} is too large a number")
    return value


def _int(said: str) -> int:
    if len(said) > MOST_DIGITS:
        raise ValueError(f"a number of {len(said):,} digits is too large")
    return int(said)
