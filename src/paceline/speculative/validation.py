"""Values of the right type, or a UsageError that says which setting it is, what came and what is wanted.

A bool is no number, text is none either, and numpy's numbers become Python's. Bounds are each setting's own.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any

from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable


def refusal(name: str, value: Any, wanted: str) -> UsageError:
    """The error to raise."""
    try:
        shown = reprlib.repr(value)
    except ValueError:  # Python spells no integer of so many digits
        shown = "of thousands of digits"
    return UsageError(f"{name} {printable(shown)}: must be {wanted}")


def whole(name: str, value: Any) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise refusal(name, value, "a whole number")


def number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise refusal(name, value, "a number")
    try:
        return float(value)
    except OverflowError:
        raise refusal(name, value, "a number that fits into 64 bits") from None


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False")
    return value


def text(name: str, value: Any) -> str:
    """Lone surrogates are refused too: Python keeps them of arguments that are no text, and of halves of
    characters in JSON."""
    if not isinstance(value, str):
        raise refusal(name, value, "text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (character {error.start})") from error
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Of one text or several."""
    if isinstance(value, str):
        return (text(name, value),)
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise refusal(name, value, "text, or a list of texts")
    return tuple(text(name, one) for one in value)


def biases(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise refusal(name, value, "a mapping from token ids to numbers")
    return {
        whole(f"{name}: token", token): number(f"{name} of {token}", bias) for token, bias in value.items()
    }


# As a data class spells them.
KINDS = {
    "int": whole,
    "float": number,
    "str": text,
    "bool": truth,
    "tuple[str, ...]": texts,
    "Mapping[int, float]": biases,
}


def settle(settings: Any) -> None:
    """Every field of a frozen data class as its annotation says."""
    for field in fields(settings):
        value = KINDS[field.type](field.name, getattr(settings, field.name))  # type: ignore[index]
        object.__setattr__(settings, field.name, value)
