"""An engine's own settings, checked before it starts: loading takes minutes, and some it does not refuse."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core import typed
from paceline.core.errors import UsageError

KINDS: dict[str, Callable[[str, Any], Any]] = {
    "int": typed.whole,
    "float": typed.number,
    "str": typed.text,
    "bool": typed.truth,
}


@dataclass(frozen=True)
class Key:
    """kind: of KINDS; "" is checked elsewhere. methods: that it is for; all where there are none. least: of a
    number. choices: of a text."""

    kind: str
    methods: tuple[str, ...] = ()
    least: float = 0
    choices: tuple[str, ...] = ()


def settled(engine: str, own: Mapping[str, Any], table: Mapping[str, Key], method: str) -> dict[str, Any]:
    """`own`, each value of its type and right for the method. Raises UsageError."""
    out = {}
    for name, value in own.items():
        key = table.get(name)
        if key is None:
            raise UsageError(
                f"{engine} has no speculative setting {name!r}: known are {', '.join(sorted(table))}"
            )
        if key.methods and method not in key.methods:
            raise UsageError(f"{engine}: {name} is for {', '.join(key.methods)}, not for {method}")
        out[name] = value = KINDS[key.kind](name, value) if key.kind else value
        if key.kind in ("int", "float") and not value >= key.least:
            raise typed.refusal(name, value, f"at least {key.least:g}")
        if key.choices and value not in key.choices:
            raise typed.refusal(name, value, f"one of {', '.join(key.choices)}")
    return out


def together(engine: str, tuned: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Both. Raises UsageError where one thing is said by both names."""
    if twice := sorted(set(own) & set(tuned)):
        raise UsageError(f"{engine}: {twice[0]} is set twice, by Paceline's name for it and by its own")
    return {**tuned, **own}


def require_free(engine: str, extra: Collection[str], taken: Collection[str]) -> None:
    """Raises UsageError where another argument is one that is made here (or begins like it: `--x*`)."""
    for argument in extra:
        flag = argument.partition("=")[0].replace("_", "-")
        if any(flag == one or (one.endswith("*") and flag.startswith(one[:-1])) for one in taken):
            raise UsageError(
                f"{engine}: {flag} is made by Paceline, which checks it, and not passed on: use its option"
            )
