"""What string methods and filters take, told before they are called: what makes more than it is given, or
looks at it more than once, must not be stopped only afterwards.

Each function has the arguments of what it bounds, after the budget.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from paceline.engines.sandbox.budget import FAST, Budget, RefusedError

LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
LONGEST_PATH = 100  # characters of attribute="a.b.c"
WIDEST_INDENT = 100
ESCAPED = 12  # characters that JSON in ASCII takes for one
DIGITS = 30  # that a number may be rounded to

Bound = Callable[..., None]


def widths(form: str) -> int:
    """No more than all the numbers in a format together is padded."""
    return sum(int(number.lstrip("0")[:18] or "0") for number in re.findall("[0-9]+", form))


def percent(budget: Budget, form: Any, *values: Any, **named: Any) -> None:
    """`form % values`. Each % may write all of the values, with as many digits as a float has."""
    form, given = str(form), budget.weigh((values, named))
    starred = _integers(values) if "*" in form else 0
    budget.room(characters=len(form) + widths(form) + starred + form.count("%") * (400 + given.characters))


def _integers(values: Iterable[Any]) -> int:
    return sum(
        _integers(value) if isinstance(value, tuple) else abs(value) if isinstance(value, int) else 0
        for value in values
    )


def times(budget: Budget, values: Any, count: int) -> None:
    """`values * count`"""
    size = len(values) * max(0, count)
    budget.room(**{"characters" if isinstance(values, str) else "steps": size})


def power(base: int, exponent: int) -> None:
    if base.bit_length() * exponent > 64:
        raise RefusedError("counts too far (a power of over 64 bits)")


def replace(budget: Budget, text: Any, old: Any, new: Any, *_: Any, **__: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    budget.room(characters=len(text) + text.count(old) * max(0, len(new) - len(old)))


def join(budget: Budget, values: Any, separator: Any = "", *_: Any, **__: Any) -> None:
    budget.room(characters=budget.weigh(values).characters + len(str(separator)) * len(values))


def split(budget: Budget, text: str, separator: str | None = None, maxsplit: int = -1) -> None:
    pieces = text.count(separator) if separator else len(text) // 2
    budget.room(steps=1 + (pieces if maxsplit < 0 else min(pieces, maxsplit)))


def rsplit(budget: Budget, text: str, separator: str | None = None, maxsplit: int = -1) -> None:
    split(budget, text, separator, maxsplit)
    each(budget, text, separator)


def splitlines(budget: Budget, text: str, *_: Any, **__: Any) -> None:
    budget.room(steps=1 + sum(map(text.count, LINE_ENDS)))


def each(budget: Budget, text: Any, part: Any = None, *_: Any) -> None:
    """Each letter may be compared with all of another text."""
    if isinstance(part, str):
        budget.work(len(str(text)) * len(part) // FAST)


def pad(budget: Budget, text: str, width: int, *_: Any) -> None:
    budget.room(characters=len(text) + width)


def letters(budget: Budget, text: Any, *_: Any, **__: Any) -> None:
    """A list of a text's letters or words is many times its size."""
    if isinstance(text, str):
        budget.work(len(text))


def indent(budget: Budget, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    text = str(text)
    splitlines(budget, text)
    lines = 2 + sum(map(text.count, LINE_ENDS))
    budget.room(characters=len(text) + lines * (1 + (width if isinstance(width, int) else len(width))))


def tojson(
    budget: Budget,
    value: Any,
    ascii_: Any = False,
    indent: Any = None,
    separators: Any = None,
    *_: Any,
    **named: Any,
) -> None:
    ascii_ = named.get("ensure_ascii", ascii_)
    width = 0 if indent is None else indent if isinstance(indent, int) else len(indent)
    if width > WIDEST_INDENT:
        raise RefusedError(f"indents too far (over {WIDEST_INDENT} characters)")
    between = 4 if separators is None else sum(map(len, map(str, separators)))
    written = budget.weigh(value)
    letters = written.characters * (ESCAPED if ascii_ else 1)
    budget.room(characters=letters + written.items * (between + width * written.depth))


def digits(_: Budget, __: Any, precision: Any = 0, *___: Any, **____: Any) -> None:
    if isinstance(precision, int) and abs(precision) > DIGITS:
        raise RefusedError(f"rounds to too many digits (over {DIGITS})")


def total(budget: Budget, values: Any, attribute: Any = None, start: Any = 0) -> None:  # noqa: ARG001
    """Lists are copied once for each one that is added."""
    letters(budget, values)
    if not isinstance(start, (int, float)):
        budget.work(len(values) * budget.weigh(values).items // FAST)


def attribute_at(position: int) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """The attribute that a filter with these arguments (its value left out) takes of each item, or None."""

    def attribute(args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        path = args[position] if position < len(args) else named.get("attribute")
        if isinstance(path, str) and len(path) > LONGEST_PATH:
            raise RefusedError(f"looks for a name of over {LONGEST_PATH} characters")
        return path

    return attribute


METHODS: Mapping[str, Bound] = MappingProxyType(
    {
        "center": pad,
        "join": lambda budget, separator, values: join(budget, values, separator),
        "ljust": pad,
        "lstrip": each,
        "replace": replace,
        "rfind": each,
        "rindex": each,
        "rjust": pad,
        "rpartition": each,
        "rsplit": rsplit,
        "rstrip": each,
        "split": split,
        "splitlines": splitlines,
        "strip": each,
        "title": letters,
        "zfill": pad,
    }
)
FILTERS: Mapping[str, Bound] = MappingProxyType(
    {
        "format": percent,
        "groupby": letters,
        "indent": indent,
        "join": join,
        "list": letters,
        "max": letters,
        "min": letters,
        "replace": replace,
        "round": digits,
        "sort": letters,
        "sum": total,
        "title": letters,
        "tojson": tojson,
        "trim": each,
        "unique": letters,
    }
)
# Where each of these takes the name of an attribute.
ATTRIBUTES = MappingProxyType(
    {
        "groupby": attribute_at(0),
        "join": attribute_at(1),
        "map": attribute_at(1_000),  # by name only
        "max": attribute_at(1),
        "min": attribute_at(1),
        "rejectattr": attribute_at(0),
        "selectattr": attribute_at(0),
        "sort": attribute_at(2),
        "sum": attribute_at(0),
        "unique": attribute_at(1),
    }
)
