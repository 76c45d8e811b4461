"""Checks of settings: each returns a value of the right type, or raises UsageError with the setting's name.

Bools are not numbers, and numpy scalars become Python numbers. A dataclass declares the range and the help of
a field by `setting`; `validate_fields` checks it, and the command line and HTTP read it.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
MAX_NUMBER_CHARACTERS = 24
MAX_LOGIT = 1e15  # of biases, penalties and temperature: their sum stays far below float32's limit of 3e38
N = TypeVar("N", int, float)


def read_number(kind: Callable[[str], N], text: str) -> N:
    """Return the finite number that a text writes in ASCII digits. kind: int or float. Raises ValueError."""
    text = text.strip()
    if len(text) <= MAX_NUMBER_CHARACTERS and NUMBER.fullmatch(text) and math.isfinite(value := kind(text)):
        return value
    raise ValueError("no number, or too long")


def read_numbers(kind: Callable[[str], N], name: str, text: str) -> tuple[N, ...]:
    """Return the numbers of a list like "2,4", which may be empty. Raises UsageError."""
    try:
        return tuple(read_number(kind, part) for part in text.split(",")) if text else ()
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UsageError(f"{name} {text}: write {what} with commas between them, such as 2,4") from None


def invalid(name: str, value: Any, wanted: str) -> UsageError:
    """Return the error to raise."""
    try:
        shown = reprlib.repr(value)
    except ValueError:  # Python spells no integer of so many digits
        shown = "of thousands of digits"
    return UsageError(f"{name} {printable(shown)}: must be {wanted}")


def unknown(what: str, name: str, choices: Collection[str]) -> UsageError:
    """Return the error to raise for a name that is not among the choices, with the nearest ones."""
    near, listed = did_you_mean(name, choices), ", ".join(filter(None, choices))
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
    return tuple(text(name, item) for item in items(name, value, "text, or a list of texts"))


def items(name: str, value: Any, wanted: str = "a list") -> Iterable[Any]:
    """Return a list, or what else can be iterated, but no text or mapping."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise invalid(name, value, wanted)
    return value


def mapping(name: str, value: Any, wanted: str = "a mapping") -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise invalid(name, value, wanted)
    return value


def logit_biases(name: str, value: Any) -> dict[int, float]:
    biases = mapping(name, value, "a mapping from token ids to numbers")
    return {
        integer(f"{name}: token", token): number(f"{name} of {token}", bias) for token, bias in biases.items()
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
SETTING = "setting"  # the key of a Setting in a field's metadata


@dataclass(frozen=True)
class Setting:
    """What is known of a field of a dataclass of settings, besides its name, type and default.

    low, high: the smallest and the largest number; None: any."""

    help: str  # a line for the command line and the schema of HTTP requests
    low: float | None = None
    high: float | None = None
    choices: Collection[str] = ()  # the allowed texts; empty: any

    def check(self, name: str, value: Any) -> None:
        """Raise UsageError for a value that is not allowed."""
        if self.choices and value not in self.choices:
            raise unknown(name, value, self.choices)
        low, high = self.low, self.high
        if (low is None or value >= low) and (high is None or value <= high):  # false for NaN
            return
        wanted = f"at least {low:,g}" if high is None else f"at most {high:,g}"
        both = low is not None and high is not None
        raise invalid(name, value, f"between {low:,g} and {high:,g}" if both else wanted)


def setting(
    default: Any,
    help: str,  # noqa: A002  # as of an option
    low: float | None = None,
    high: float | None = None,
    *,
    choices: Collection[str] = (),
) -> Any:
    """Return a dataclass field with a Setting. A class as the default makes the default."""
    kind = "default_factory" if isinstance(default, type) else "default"
    return field(metadata={SETTING: Setting(help, low, high, choices)}, **{kind: default})


def settings_of(kind: Any) -> dict[str, Setting]:
    """Return the Setting of each field of a dataclass that has one."""
    return {it.name: it.metadata[SETTING] for it in fields(kind) if SETTING in it.metadata}


def validate_fields(settings: Any) -> None:
    """Convert the fields of a frozen dataclass by their annotations (CONVERTERS), and check their settings.

    Fields of other types are left as they are, and so is None where the annotation ends in "| None"."""
    for it in fields(settings):
        assert isinstance(it.type, str), "needs `from __future__ import annotations`"
        kind, value = it.type.removesuffix(" | None"), getattr(settings, it.name)
        if kind not in CONVERTERS or (value is None and kind != it.type):
            continue
        value = CONVERTERS[kind](it.name, value)
        if SETTING in it.metadata:
            it.metadata[SETTING].check(it.name, value)
        object.__setattr__(settings, it.name, value)
