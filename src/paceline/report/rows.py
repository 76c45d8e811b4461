"""A bench's results for other programs: CSV, and JSON with one result a line."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from typing import IO, Any

Record = Mapping[str, Any]


def write_csv(record: Record, file: IO[str]) -> None:
    """A line a result; a figure that is not known is an empty cell. file: opened with newline=""."""
    rows = list(csv_rows(record))
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def csv_rows(record: Record) -> Iterator[dict[str, Any]]:
    """Flat: point.NAME, speedup with speedup_low and speedup_high, theory.NAME; in seconds and bytes."""
    for result in record["results"]:
        row = {f"point.{name}": value for name, value in result["point"].items()}
        for name, value in result.items():
            if name == "speedup":
                it = value or {}
                row |= {
                    "speedup": it.get("value"),
                    "speedup_low": it.get("low"),
                    "speedup_high": it.get("high"),
                }
            elif name == "theory":
                row |= {f"theory.{formula}": predicted for formula, predicted in value.items()}
            elif name != "point":
                row[name] = value
        yield row


def jsonl(record: Record) -> Iterator[str]:
    """A line a result, with all that its data class holds."""
    for result in record["results"]:
        yield json.dumps(finite(result), allow_nan=False)


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: a figure that is one of them is not known."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
