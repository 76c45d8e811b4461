"""Type checks of settings: each returns a value of the right type, or raises UsageError with the setting's
name.
Bools are not numbers, and numpy scalars become Python numbers. Callers check their own bounds.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
MAX_NUMBER_CHARACTERS = 24
N = TypeVar("N", int, float)


def read_number(kind: Callable[[str], N], text: str) -> N:
    """Return the finite number that a text writes in ASCII digits. kind: int or float. Raises ValueError."""
    text = text.strip()
    if len(text) <= MAX_NUMBER_CHARACTERS and NUMBER.fullmatch(text) and math.isfinite(value := kind(text)):
        return value
    raise ValueError("no number, or too long")


def invalid(name: str, value: Any, wanted: str) -> UsageError:
    """Return the error to raise."""
    try:
        shown = reprlib.repr(value)
    except ValueError:  # Python spells no integer of so many digits
        shown = "of thousands of digits"
    return UsageError(f"{name} {printable(shown)}: must be {wanted}")


def unknown(what: str, name: str, choices: Collection[str]) -> UsageError:
    """Return the error to raise for a name that is not among the choices, with the nearest ones."""
    near, listed = did_you_mean(name, choices), ", ".join(choices)
    return UsageError(f"unknown {what} {name!r}{near}: choose from {listed}")


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the choices that resemble a name; "" if none does, or one is it."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = [by_lower[match] for match in get_close_matches(name.lower(), by_lower, cutoff=0.65)]
    return f" (did you mean {' or '.join(near)}?)" if near and name not in near else ""


def integer(name: str, value: Any) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise invalid(name, value, "a whole number")


def number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise invalid(name, value, "a number that fits into 64 bits") from None


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, value, "True or False")
    return value


def text(name: str, value: Any) -> str:
    """Return a str that encodes as UTF-8; arguments and JSON may hold lone surrogates."""
    if not isinstance(value, str):
        raise invalid(name, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (character {error.start})") from error
    return value


def text_list(name: str, value: Any) -> tuple[str, ...]:
    """Return one string, or several, as a tuple."""
    if isinstance(value, str):
        return (text(name, value),)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise invalid(name, value, "text, or a list of texts")
    return tuple(text(name, item) for item in value)


def logit_biases(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise invalid(name, value, "a mapping from token ids to numbers")
    return {
        integer(f"{name}: token", token): number(f"{name} of {token}", bias) for token, bias in value.items()
    }


# By annotation.
CONVERTERS = {
    "int": integer,
    "float": number,
    "str": text,
    "bool": boolean,
    "tuple[str, ...]": text_list,
    "Mapping[int, float]": logit_biases,
}


def validate_fields(settings: Any) -> None:
    """Convert every field of a frozen dataclass by its annotation."""
    for field in fields(settings):
        value = CONVERTERS[field.type](field.name, getattr(settings, field.name))  # type: ignore[index]
        object.__setattr__(settings, field.name, value)
