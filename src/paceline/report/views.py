"""The report of a search for views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from paceline.report.table import listing
from paceline.speculative.printable import printable


def write(record: Mapping[str, Any], file: IO[str]) -> None:
    """record: with the names of `paceline views search --json`."""
    kept = record["kept"]
    listing(
        ("found by", "tried", "blocks left out", "guesses right", "of the weights", "speed expected"),
        [row(name, tried, record["blocks"]) for name, tried in by_method(record["tried"]).items()],
        file,
        1,
    )
    file.write(
        f"\nkept: view:{kept['words']}\n"
        f"On other texts {kept['agreement']:.2f} of {kept['judged']:,} guesses are right, for "
        f"{kept['share']:.2f} of the model's weights: {record['speed']:.2f}x plain decoding is expected, "
        f"at --n-draft {record['n_draft']}.\n"
    )
    if record["speed"] <= 1.0:
        file.write("No view pays here. `auto` leaves it out after a few tries.\n")
    file.write(f"\n    paceline run -m {printable(record['model'])} -md view: PROMPT\n")


def by_method(tried: list[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    out: dict[str, list[Mapping[str, Any]]] = {}
    for one in tried:
        out.setdefault(one["method"], []).append(one)
    return out


def row(name: str, tried: list[Mapping[str, Any]], blocks: int) -> tuple[str, ...]:
    """Return the cells of the best view of one method."""
    best = max(tried, key=lambda one: one["speed"])
    return (
        name,
        str(len(tried)),
        f"{best['left_out']} of {blocks}",
        f"{best['agreement']:.2f}",
        f"{best['share']:.2f}",
        f"{best['speed']:.2f}x",
    )
