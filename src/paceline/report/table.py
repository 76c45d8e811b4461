"""Records as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def comparison(plain: Mapping[str, Any], drafted: Mapping[str, Any], verdict: str, file: IO[str]) -> None:
    """Plain and drafted decoding side by side. Each maps the names of `paceline run --json`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("", "tokens", "tokens/s", "speedup", "acceptance rate", "acceptance length")
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    base = plain["tokens_per_second"]
    for name, run in (("plain", plain), ("drafted", drafted)):
        stats = run["stats"]
        table.add_row(
            name,
            f"{run['n_tokens']}",
            f"{run['tokens_per_second']:.1f}",
            f"{run['tokens_per_second'] / base:.2f}x" if base else "-",
            ratio(stats["acceptance_rate"]),
            ratio(stats["acceptance_length"]),
        )
    console = Console(file=file, highlight=False)
    console.print(table)
    console.print(f"output identical: {verdict}", markup=False)


def listing(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], file: IO[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(file=file, highlight=False).print(table, markup=False, soft_wrap=True)
