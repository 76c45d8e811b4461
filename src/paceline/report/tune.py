"""The tables of a tune, and those of profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.bench import header, interval
from paceline.report.table import NOT_MEASURED, Block, bar, number, write_report, write_table
from paceline.speculative.printable import count, printable
from paceline.system.terminal import wrapped

Record = Mapping[str, Any]


def write(record: Record, file: IO[str]) -> None:
    """Write a tune. record: the output of `paceline tune --json`."""
    head = header({"provenance": record["provenance"], "results": [], "file": record["file"]})
    by_title: dict[str, list[Record]] = {}
    notes: dict[str, str] = {}
    for stage in record["stages"]:
        # One table for the stages of a sweep, and one for all rounds, with each candidate's last result.
        title = "rounds" if stage["stage"].startswith("round ") else stage["stage"].partition("=")[0]
        by_title.setdefault(title, []).extend(stage["results"])
        notes[title] = stage["note"] or notes.get(title, "")
    blocks = [_block(title, results) for title, results in by_title.items()]
    lines = [f"{title}: {printable(note)}" for title, note in notes.items() if note]
    write_report(head, blocks, [*lines, *conclusion(record)], file)


def conclusion(record: Record) -> list[str]:
    """Return the closing lines: what was chosen, why, and what was saved."""
    end = record["conclusion"]
    if not end:
        return []
    if end["status"] != "done":
        return [f"{end['status']}: `paceline tune --continue {record['file']}` goes on"]
    lines = [f"chosen: {printable(end['chosen'])}: {end['why']}"]
    gain = end["speedups"].get(end["chosen"])
    if gain is not None:
        lines[0] += f" ({interval(gain)} plain decoding, {count(end['items'], 'prompt')})"
    profile = end["profile"]
    if profile is None:
        return [*lines, "no profile is saved"]
    saved = f"saved as profile {profile['name']}: {profile['command']}"
    return [*lines, printable(saved), "run, chat and serve use it for this model (--profile none: without)"]


def write_conclusion(record: Record, file: IO[str]) -> None:
    file.writelines(f"{wrapped(line, file)}\n" for line in conclusion(record))


def _block(title: str, results: Sequence[Record]) -> Block:
    """Return the table of a stage with a bar for each speedup; plain decoding once."""
    unique = list({result["system"]: result for result in results}.values())
    largest = max((result["speedup"]["value"] for result in unique if _has_speed(result)), default=0.0)
    rows = [
        (
            printable(result["system"]),
            bar(result["speedup"]["value"], largest) if _has_speed(result) else "",
            interval(result["speedup"]) if _has_speed(result) else NOT_MEASURED,
            number(result["acceptance_rate"], ".2f"),
            number(result["acceptance_length"], ".2f"),
            "yes" if result["lossless"] else printable(result["verdict"]),
        )
        for result in unique
    ]
    columns = ("candidate", "", "speedup", "accept.\nrate", "accept.\nlength", "lossless")
    return Block(title, columns, tuple(rows), 2)


def _has_speed(result: Record) -> bool:
    return bool(result["lossless"] and result["speedup"])


def write_profiles(profiles: Sequence[Record], file: IO[str]) -> None:
    """Write the table. profiles: as of `paceline profile list --json`."""
    rows = [
        (one["name"], one["target"]["name"], "yes" if one["here"] else "no", one["tuned"], one["command"])
        for one in profiles
    ]
    columns = ("profile", "model", "this machine", "tuned", "settings")
    write_table(columns, [tuple(map(printable, row)) for row in rows], file)
