"""The layout of --help, and the completion of names in a shell (typer's --install-completion).

--help has the common options, --help-all all of them under the headings of panels. To complete a name, no
model is read and no engine imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from paceline.speculative.errors import PacelineError

LAST = "Options"
ALL = "help_all"
MAX_OPTIONS = 10  # a command with more has --help-all, and shows these by default:
_COMMON = """\
--file --system --messages --model --model-draft --ctx-size --threads --gpu-layers --n-predict --temp --seed
--json-schema --draft --policy --cross-vocab --corpus --remember --compare --stats --json --help --help-all
--host --port --api-key-file --alias --engine --sessions --queue --timeout --replicas --methods --suite
--minutes --full --items --baseline --prompts --samples --limit --cost-curve --chat-template --data --epochs
--out --experts --max-rise --shares --min-agreement --context-lengths --refresh --task --measure --folder
--continue --tries --to --engine-version --format --from --save --sweep --system --checklist"""
COMMON = frozenset(_COMMON.split())
EXAMPLES = {
    "run": (
        'paceline run -m zoo:smollm2 "What is a paceline?"',
        'paceline run -m target.gguf -md draft.gguf "def fibonacci(n):"',
        "paceline run -m ollama:llama3.2:3b --compare -f report.txt",
    ),
    "chat": (
        "paceline chat -m zoo:smollm2",
        "paceline chat -m ollama:qwen2.5-coder:32b -md ollama:qwen2.5-coder:0.5b",
        'paceline chat -m instruct.gguf --system "Answer in one word." --temp 0',
    ),
    "serve": (
        "paceline serve -m zoo:smollm2",
        "paceline serve -m target.gguf -md draft.gguf --sessions 8",
        "paceline serve -m target.gguf --host 0.0.0.0 --api-key-file keys.txt",
    ),
}


def _print_all(context: typer.Context, requested: bool) -> None:
    if requested:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", callback=_print_all, is_eager=True, help="Show all options and exit.")
]


class GroupedCommand(TyperCommand):
    """A command with grouped options in --help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return [piece.replace("{", "").replace("}", "") for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if lines := EXAMPLES.get(ctx.command.name):
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))
        short, n_hidden = self._short(ctx), 0
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda p: _panel(p) == LAST):
            if (record := param.get_help_record(ctx)) is None:  # hidden
                continue
            if short and param.param_type_name == "option" and not COMMON & {*param.opts}:
                n_hidden += 1
                continue
            # The epilog describes the --no- form of flags.
            name, text = record[0].partition(" <")[0].partition(" / ")[0], record[1].replace(".0]", "]")
            row = (name, _first_sentence(text)) if short else (name, text)
            panels.setdefault(LAST if short else _panel(param), []).append(row)
        for title, rows in panels.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        if n_hidden:
            formatter.write(f"\n  {n_hidden} more options: {ctx.command_path} --help-all\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if not self._short(ctx):
            super().format_epilog(ctx, formatter)

    def _short(self, ctx: Any) -> bool:
        return ALL not in ctx.meta and any(param.name == ALL for param in self.params)


def _panel(param: Any) -> str:
    default = "Arguments" if param.param_type_name == "argument" else LAST
    return getattr(param, "rich_help_panel", None) or default


def _first_sentence(text: str) -> str:
    """Return the first sentence of an option's text, with the default value but without the range."""
    sentence = text.partition(".  [")[0].partition(". ")[0].removesuffix(".")
    default = re.search(r"\[(default: [^;\]]+)", text)
    return f"{sentence}.  [{default[1]}]" if default else f"{sentence}."


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
    "--to": _names("integrations.export", "TARGETS"),
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
