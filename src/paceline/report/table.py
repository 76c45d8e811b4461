"""Records as tables for a terminal. What is piped is never cropped or wrapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table

WIDEST = 10_000


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
    """The first `n_left` columns (by default all) are words, the rest numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        words = n_left is None or i < n_left
        # On a narrow terminal the last column wraps.
        table.add_column(name, justify="left" if words else "right", no_wrap=i < len(columns) - 1)
    for row in rows:
        table.add_row(*row)
    width = None if file.isatty() else WIDEST
    console = Console(file=file, width=width, highlight=False, markup=False)
    # Written by us: rich would answer a closed pipe with an exit code of its own.
    with console.capture() as captured:
        console.print(table)
    file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
