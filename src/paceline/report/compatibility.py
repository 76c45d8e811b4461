"""The compatibility of two models, as a table: the verdict first, the advice last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.report.table import listing
from paceline.speculative.printable import printable

Record = Mapping[str, Any]

WORDS = {
    "same": "it fits: the vocabulary is the target's, to the last token",
    "compatible": "it fits: token ids mean the same to both models",
    "mappable": "it fits with a translation (--cross-vocab): another vocabulary",
    "incompatible": "it does not fit",
}
PREFIX = {"fatal": "fatal: ", "mapping": "differs: ", "warning": "warning: ", "note": ""}
COLUMNS = ("", "target", "draft", "what it means")
NOTHING = "-"


def write(record: Record, file: IO[str]) -> None:
    """record: with the names of `paceline check --json`."""
    why = "; ".join(reason["text"] for reason in record["reasons"] if reason["weight"] == "fatal")
    said = WORDS[record["verdict"]] + (f": {why}" if why else "")
    file.write(f"{record['verdict']}: {printable(said)}\n\n")
    names = {role: Path(record[role]).name for role in ("target", "draft")}
    files = {"field": "file", "weight": "note", "text": "", **names}
    listing(COLUMNS, [row(reason) for reason in [files, *record["reasons"]]], file)
    differing(record["reasons"], file)
    if record["advice"]:
        file.write("\n")
    for line in record["advice"]:
        # A command on a line of its own, to be copied.
        file.write(f"- {printable(line)}\n".replace(": paceline ", ":\n    paceline ", 1))


def row(reason: Record) -> tuple[str, ...]:
    cells = [printable(cell(reason[role])) for role in ("target", "draft")]
    return (reason["field"], *cells, printable(PREFIX[reason["weight"]] + reason["text"]))


def differing(reasons: Sequence[Record], file: IO[str]) -> None:
    """Write the first tokens with different texts."""
    found = next((reason for reason in reasons if reason["field"] == "token texts"), None)
    if found is None or not found["target"]:
        return
    rows = [
        (f"{ours['id']}", quoted(ours["text"]), quoted(theirs["text"]))
        for ours, theirs in zip(found["target"], found["draft"], strict=True)
    ]
    file.write("\n")
    listing(("first that differ", "target", "draft"), rows, file)


def cell(value: Any) -> str:
    if value is None or value in ([], {}):
        return NOTHING
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case {"id": token, "text": text, "added": added}:
            return f"{token} {text}" + (", added" if added else "")
        case {"id": token, "text": text}:
            return f"{token} {text}"
        case {"ends": ends, "added": added}:
            return cell(ends) + (", added" if added else "")
        case {"all": n, "used": used}:
            return f"{used} of {n}"
        case {"texts": n, "common": common}:
            return f"{common:,} of {n:,}"
        case {"added": added}:
            return NOTHING
        case dict():
            return ", ".join(f"{name} {NOTHING if one is None else one}" for name, one in value.items())
        case list():
            return ", ".join(map(cell, value))
    return str(value)


def quoted(text: str) -> str:
    return printable(f"“{text}”")
