"""Records as tables for a terminal. What is piped is never cropped or wrapped."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

WIDEST = 10_000
GAP = 2  # between two columns
WRAPPED = 12  # characters that a column has at least, where it is wrapped


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def summary(run: Mapping[str, Any]) -> str:
    """One generation in a line. `run` has the names of `paceline run --json`."""
    stats = run["stats"]
    parts = [f"{run['n_tokens']} tokens, {run['tokens_per_second']:.1f} tokens/s", *prompt(run)]
    if stats["drafted"]:
        drafted = {name: s for name, s in stats["by_source"].items() if s["drafted"]}
        shares = ", ".join(f"{name} {s['accepted']}/{s['drafted']}" for name, s in drafted.items())
        parts.append(f"acceptance rate {ratio(stats['acceptance_rate'])} ({shares})")
        parts.append(f"acceptance length {ratio(stats['acceptance_length'])}")
    if policy := run.get("policy"):
        parts += [policy["why"]] if policy["why"] else []
    if run["stop_reason"] == "context":
        parts.append("the context is full (-c)")
    return "; ".join(parts)


def prompt(run: Mapping[str, Any]) -> list[str]:
    """How fast a prompt was read; nothing where none was, but from the cache."""
    speed = run["prompt_tokens_per_second"]
    return [] if speed is None else [f"prompt {run['n_read']:,} tokens, {speed:.1f} tokens/s"]


def comparison(record: Mapping[str, Any], verdict: str, file: IO[str]) -> None:
    """Plain and drafted decoding side by side. `record` has the names of `paceline run --compare --json`."""
    plain, drafted = record["plain"], record["drafted"]
    rows = []
    for name, run in (("plain", plain), ("drafted", drafted)):
        stats = run["stats"]
        rows.append(
            (
                name,
                f"{run['n_tokens']}",
                f"{run['tokens_per_second']:.1f}",
                f"{run['tokens_per_second'] / plain['tokens_per_second']:.2f}x",
                ratio(stats["acceptance_rate"]),
                ratio(stats["acceptance_length"]),
            )
        )
    listing(("", "tokens", "tokens/s", "speedup", "acceptance rate", "acceptance length"), rows, file, 1)
    sources(drafted["stats"], file)
    if why := (drafted.get("policy") or {}).get("why"):
        file.write(f"{why}\n")
    file.write("".join(f"{line}\n" for line in prompt(record)))
    file.write(f"output identical: {verdict}\n")


def sources(stats: Mapping[str, Any], file: IO[str]) -> None:
    """What each of several drafters did: at how many steps it was asked, had a draft that was verified, and
    was right about at least one token of it; and its tokens. Nothing where one drafted alone."""
    if len(stats["by_source"]) < 2:
        return
    names = ("tried", "proposed", "right", "drafted", "accepted")
    rows = [(name, *(f"{s[key]}" for key in names)) for name, s in stats["by_source"].items()]
    listing(("drafter", *names), rows, file, 1)


def listing(
    columns: Sequence[str], rows: Sequence[Sequence[str]], file: IO[str], n_left: int | None = None
) -> None:
    """The first `n_left` columns (by default all) are words, the rest numbers. No number is ever cropped:
    what does not fit beside each other on a terminal, though the last column of words wraps, stands below
    each other."""
    words = len(columns) if n_left is None else n_left
    console = Console(file=file, highlight=False, markup=False, width=None if file.isatty() else WIDEST)
    widths = [widest(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    fixed = widths[:-1] if words == len(columns) else widths
    if sum(fixed) + GAP * (len(widths) - 1) + WRAPPED * (len(fixed) < len(widths)) > console.width:
        records(columns, rows, file, console.width)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if i < words else "right"
        # On a narrow terminal the last column wraps.
        table.add_column(name, justify=justify, no_wrap=i < len(columns) - 1)
    for row in rows:
        table.add_row(*row)
    # Written by us: rich would answer a closed pipe with an exit code of its own.
    with console.capture() as captured:
        console.print(table)
    file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def records(columns: Sequence[str], rows: Sequence[Sequence[str]], file: IO[str], room: int) -> None:
    """A cell a line, with its column's name before it, and a line between two rows."""
    names = [" ".join(name.replace("-\n", "-").split()) for name in columns]
    width = max(map(cell_len, names), default=0)
    for n, row in enumerate(rows):
        file.write("\n" * (n > 0))
        for name, cell in zip(names, row, strict=True):
            if cell:
                first = f"{name}{' ' * (width - cell_len(name) + GAP)}"
                lines = textwrap.wrap(
                    " ".join(cell.split()), max(room, width + GAP + WRAPPED), initial_indent=first,
                    subsequent_indent=" " * (width + GAP), break_on_hyphens=False,
                )  # fmt: skip
                file.write("".join(f"{line.rstrip()}\n" for line in lines or [first]))


def widest(name: str, cells: Sequence[str]) -> int:
    """Characters of a column, whose name and cells may have several lines."""
    return max(cell_len(line) for cell in (name, *cells) for line in cell.split("\n"))
