"""Decoding methods as named on a command line: `plain`, `lookup+model`, `model:n_draft=12:p_min=0`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import located
from paceline.drafter_table import DRAFTS, uses_draft
from paceline.settings import Drafting, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import did_you_mean, read_number

PLAIN = "plain"
TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Method:
    """A decoding method. drafting: the shared settings with the changes in its name.
    draft: a draft of its own; None for the bench's, if it uses one."""

    name: str
    drafting: Drafting = field(repr=False)
    draft: Path | None = None

    @property
    def plain(self) -> bool:
        return self.drafting.plain

    @property
    def needs_draft(self) -> bool:
        return any(set(DRAFTS) & {*row.uses} and not row.optional for row in self.drafting.rows)

    @property
    def uses_draft(self) -> bool:
        """True if it uses a draft model that is given."""
        return uses_draft(self.drafting.drafters)


def parse(text: str, settings: Mapping[str, Any]) -> Method:
    """Parse a method. settings: fields of Drafting that its name may override. Raises UsageError."""
    names, *changes = text.strip().split(":")
    drafters = ("none",) if names == PLAIN else tuple(names.split("+"))
    own = dict(read_change(f"method {text!r}", change) for change in changes)
    # Only a draft model has a vocabulary to translate.
    shared = {n: v for n, v in settings.items() if n != "cross_vocab" or uses_draft(drafters)}
    with located(f"method {text.strip()!r}"):
        return Method(text.strip(), make_settings(Drafting, {**shared, **own, "drafters": drafters}))


def parse_all(text: str, settings: Mapping[str, Any]) -> list[Method]:
    """Parse a comma-separated list; plain decoding always comes first."""
    parsed = [parse(one, settings) for one in text.split(",") if one.strip()]
    methods = [parse(PLAIN, settings), *(method for method in parsed if not method.plain)]
    names = [method.name for method in methods]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"method {twice[0]!r} is named twice")
    return methods


def check_draft(methods: Sequence[Method], given: bool) -> None:
    """Raise UsageError if a method needs a draft model and none is given, or if none uses the one given."""
    needs = next((method.name for method in methods if method.needs_draft), "")
    if given != any(method.uses_draft for method in methods) and (given or needs):
        missing = f"method {needs!r}: needs a draft model: give one (-md), or leave 'model' out"
        unused = "a draft model is given (-md), but no method names 'model': leave one out"
        raise UsageError(unused if given else missing)


def read_change(place: str, change: str) -> tuple[str, Any]:
    """Return a field of Drafting and its value. change: NAME=VALUE. Raises UsageError, which begins with
    the place."""
    name, _, value = change.partition("=")
    kinds: dict[str, Callable[[str], Any]] = {f.name: TYPES[str(f.type)] for f in fields(Drafting)[1:]}
    try:
        return name, value if kinds[name] is str else read_number(kinds[name], value)
    except (KeyError, ValueError):
        why, names = f"{change!r} is no setting{did_you_mean(name, kinds)}", ", ".join(kinds)
        raise UsageError(f"{place}: {why}; write NAME=NUMBER with one of {names}") from None
