"""What a server says of itself, taken for nothing that it is not: a field may be missing, or hold anything.

Each function raises ValueError, with a few words that name the field, where it holds something else.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from paceline.core.printable import shortened

MOST = 10**9  # tokens, steps, token ids
LONGEST = 1e12  # milliseconds
Said = Mapping[str, Any]


def text(said: Said, name: str) -> str:
    """Empty where there is none."""
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise _odd(name, value)
    return value or ""


def count(said: Said, name: str, default: int | None = None, *, most: int = MOST) -> int:
    """A number of things; required without a default."""
    return _count(name, said.get(name, default), most)


def counts(said: Said, name: str) -> tuple[int, ...]:
    """A list of them; empty where there is none."""
    return tuple(_count(name, one, MOST) for one in _listed(said, name))


def milliseconds(said: Said, name: str) -> float:
    """0 where there are none."""
    value = said.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST:
        raise _odd(name, value)
    return float(value)


def object_of(said: Said, name: str) -> dict[str, Any]:
    """Empty where there is none."""
    value = said.get(name)
    if value is not None and not isinstance(value, dict):
        raise _odd(name, value)
    return value or {}


def objects(said: Said, name: str) -> list[dict[str, Any]]:
    """A list of them; empty where there is none."""
    found = _listed(said, name)
    for one in found:
        if not isinstance(one, dict):
            raise _odd(name, one)
    return found


def _listed(said: Said, name: str) -> list[Any]:
    value = said.get(name)
    if value is not None and not isinstance(value, list):
        raise _odd(name, value)
    return value or []


def _count(name: str, value: object, most: int) -> int:
    # Some write whole numbers as 12.0.
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise _odd(name, value)
    if not 0 <= value <= most:
        raise _odd(name, value)
    return int(value)


def _odd(name: str, value: object) -> ValueError:
    return ValueError(f"{name} is {shortened(reprlib.repr(value), 80)}")
