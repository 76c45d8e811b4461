"""The report of a search for views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from paceline.report.table import write_table
from paceline.speculative.printable import printable


def write(record: Mapping[str, Any], file: IO[str]) -> None:
    """Write the report. record: the output of `paceline views search --json`."""
    view = record["best"]
    rows = []
    for method in dict.fromkeys(one["method"] for one in record["tried"]):
        tried = [one for one in record["tried"] if one["method"] == method]
        best = max(tried, key=lambda one: one["speed"])
        left_out, figures = f"{best['left_out']} of {record['blocks']}", (best["agreement"], best["share"])
        rows.append(
            (method, str(len(tried)), left_out, *(f"{x:.2f}" for x in figures), f"{best['speed']:.2f}x")
        )
    columns = ("found by", "tried", "blocks left out", "guesses right", "of the weights", "speed expected")
    write_table(columns, rows, file, 1)
    file.write(
        f"\nkept: view:{view['words']}\n"
        f"On other texts {view['agreement']:.2f} of {view['judged']:,} guesses are right, for "
        f"{view['share']:.2f} of the model's weights: {record['speed']:.2f}x plain decoding is expected, "
        f"at --n-draft {record['n_draft']}.\n"
    )
    if record["speed"] <= 1.0:
        file.write("No view pays here. `auto` leaves it out after a few tries.\n")
    file.write(f"\n    paceline run -m {printable(record['model'])} -md view: PROMPT\n")
