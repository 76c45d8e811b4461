"""Completion of names in a shell (typer's --install-completion). No model is read, no engine imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from paceline.drafter_table import DRAFTERS
from paceline.speculative.errors import PacelineError

Names = Callable[[], Iterable[Any]]  # names, or pairs of a name and its description
VARIABLE = "_PACELINE_COMPLETE"
BREAKS = (":", "=")  # where bash splits words; it replaces only what follows


def _models() -> Iterable[str]:
    """Return the names of installed models, and GGUF files here; a shell completes other paths itself."""
    from paceline.models.stores.inventory import installed_names

    return [*installed_names(), *(path.name for path in Path().glob("*.gguf")), "view:"]


def _drafters() -> Iterable[tuple[str, str]]:
    return [(row.name, row.about) for row in DRAFTERS.values()]


def _suites() -> Iterable[str]:
    from paceline.bench.suites import workload

    return [*workload.GROUPS, *workload.known_suites()]


def _corpora() -> Iterable[str]:
    from paceline.storage.corpora import names

    return names()


def _constant(module: str, name: str) -> Names:
    return lambda: list(getattr(import_module(f"paceline.{module}"), name))


def _separated(names: Names, separators: str) -> Callable[[str], Iterable[Any]]:
    """Complete the last name of a list."""

    def complete(incomplete: str) -> Iterable[Any]:
        start = 1 + max(incomplete.rfind(separator) for separator in separators)
        pairs = [name if isinstance(name, tuple) else (name, "") for name in names()]
        return [(incomplete[:start] + name, about) for name, about in pairs]

    return complete


# By the long names of options and the names of arguments.
COMPLETIONS: dict[str, Callable[..., Iterable[Any]]] = {
    **dict.fromkeys(("--model", "--model-draft", "--vocab-of", "MODEL", "TARGET", "DRAFT"), _models),
    "--draft": _separated(_drafters, ","),
    "--methods": _separated(_drafters, ",+"),
    "--suite": _separated(_suites, ","),
    "--corpus": _corpora,
    "--policy": _constant("config", "POLICIES"),
    "--verify": _constant("config", "VERIFY"),
    "--cross-vocab": _constant("config", "CROSS_VOCAB"),
    "--cache-type": _constant("backends.llama_cpp.binding", "CACHE_TYPES"),
    "--dtype": _constant("backends.transformers.loading", "DTYPES"),
    "--task": _constant("doctor.draft_advice", "TASKS"),
    "--engine": _constant("integrations.export", "ENGINES"),
}


def print_completions(app: Callable[..., Any]) -> None:
    """Answer a shell that asks for completions."""
    with redirect_stdout(StringIO()) as out, suppress(PacelineError, OSError, SystemExit):
        skipped = _join_words() if os.environ[VARIABLE] == "complete_bash" else 0
        app(prog_name="paceline")
    print("\n".join(line[skipped:] for line in out.getvalue().splitlines()))


def _join_words() -> int:
    """Join the words that bash has split. Return the length of what it keeps of the last word."""
    words: list[str] = []
    for word in os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]:
        if words and (word.startswith(BREAKS) or words[-1].endswith(BREAKS)):
            words[-1] += word
        else:
            words.append(word)
    os.environ |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    typed = words[-1].partition("=")[2] if words[-1].startswith("-") else words[-1]
    return 1 + max(typed.rfind(sign) for sign in BREAKS)
