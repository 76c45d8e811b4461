"""The compatibility of two models: the verdict, a table and advice."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from paceline.report.table import write_table
from paceline.speculative.printable import printable
from paceline.system.terminal import wrapped

Record = Mapping[str, Any]

WORDS = {
    "same": "it fits: the vocabulary is the target's, to the last token",
    "compatible": "it fits: token ids mean the same to both models",
    "mappable": "it fits with a translation (--cross-vocab): another vocabulary",
    "incompatible": "it does not fit",
}
PREFIX = {"fatal": "fatal: ", "mapping": "differs: ", "warning": "warning: ", "note": ""}
COLUMNS = ("", "target", "draft", "what it means")


def write(record: Record, file: IO[str]) -> None:
    """Write the report. record: the output of `paceline check --json`."""
    why = "; ".join(reason["text"] for reason in record["reasons"] if reason["weight"] == "fatal")
    verdict = WORDS[record["verdict"]] + (f": {why}" if why else "")
    file.write(wrapped(f"{record['verdict']}: {printable(verdict)}", file) + "\n\n")
    names = {role: Path(record[role]).name for role in ("target", "draft")}
    files = {"field": "file", "weight": "note", "text": "", **names}
    write_table(COLUMNS, [row(reason) for reason in [files, *record["reasons"]]], file)
    if record["advice"]:
        file.write("\n")
    for line in record["advice"]:
        text, colon, command = f"- {printable(line)}".partition(": paceline ")
        file.write(wrapped(text + colon[:1], file, 2) + "\n")
        if command:  # on a line of its own, to be copied
            file.write(f"    paceline {command}\n")


def row(reason: Record) -> tuple[str, ...]:
    values = [reason[role] for role in ("target", "draft")]
    cells = ["-" if x is None else printable(x) if isinstance(x, str) else f"{x:,}" for x in values]
    return (reason["field"], *cells, printable(PREFIX[reason["weight"]] + reason["text"]))
