"""Completion of names in a shell (typer's --install-completion). No model is read, no engine imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from typing import Any

from paceline.speculative.errors import PacelineError

VARIABLE = "_PACELINE_COMPLETE"
BREAKS = (":", "=")  # where bash splits words; it replaces only what follows


def _names(module: str, *attributes: str) -> Callable[[], Iterable[str]]:
    """Return a function that lists the names in tables or functions of a module, which it imports late."""

    def names() -> Iterable[str]:
        tables = [getattr(import_module(f"paceline.{module}"), name) for name in attributes]
        return [name for table in tables for name in (table() if callable(table) else table)]

    return names


def _separated(names: Callable[[], Iterable[str]], separators: str) -> Callable[[str], Iterable[str]]:
    """Return a function that completes the last name of a list."""

    def complete(incomplete: str) -> Iterable[str]:
        start = 1 + max(map(incomplete.rfind, separators))
        return [incomplete[:start] + name for name in names()]

    return complete


MODELS = ("--model", "--model-draft", "--vocab-of", "MODEL", "TARGET", "DRAFT")
# By the long names of options and the names of arguments. A shell completes files itself.
COMPLETIONS: dict[str, Callable[..., Iterable[str]]] = {
    **dict.fromkeys(MODELS, _names("models.stores.inventory", "installed_names")),
    "--draft": _separated(_names("drafter_table", "DRAFTERS"), ","),
    "--methods": _separated(_names("drafter_table", "DRAFTERS"), ",+"),
    "--suite": _separated(_names("bench.suites.workload", "GROUPS", "SUITES"), ","),
    "--corpus": _names("storage.corpora", "names"),
    "--policy": _names("settings", "POLICIES"),
    "--verify": _names("settings", "VERIFY"),
    "--cross-vocab": _names("settings", "CROSS_VOCAB"),
    "--cache-type": _names("settings", "CACHE_TYPES"),
    "--kernels": _names("settings", "KERNELS"),
    "--role": _names("settings", "ROLES"),
    "--dtype": _names("settings", "DTYPES"),
    "--task": _names("doctor.drafts", "TASKS"),
    "--engine": _names("integrations.export", "ENGINES"),
}


def print_completions(app: Callable[..., Any]) -> None:
    """Answer a shell that asks for completions."""
    with redirect_stdout(StringIO()) as out, suppress(PacelineError, OSError, SystemExit):
        cut = _join_words() if os.environ[VARIABLE] == "complete_bash" else 0
        app(prog_name="paceline")
    print("\n".join(line[cut:] for line in out.getvalue().splitlines()))


def _join_words() -> int:
    """Join the words that bash has split. Return the length of what it keeps of the last word."""
    words: list[str] = []
    for word in f"{os.environ['COMP_WORDS']}\n".split("\n")[: int(os.environ["COMP_CWORD"]) + 1]:
        if words and (word.startswith(BREAKS) or words[-1].endswith(BREAKS)):
            words[-1] += word
        else:
            words.append(word)
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    typed = words[-1].partition("=")[2] if words[-1].startswith("-") else words[-1]
    return 1 + max(map(typed.rfind, BREAKS))
