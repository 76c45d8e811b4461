"""Which draft, as a table: from the record that `paceline pairs TARGET --json` prints."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import IO, Any

from rich.cells import cell_len
from rich.console import Console

from paceline.core.printable import printable
from paceline.report.bench import NONE
from paceline.report.block import Block
from paceline.report.models import at_home, known_as, size

Record = Mapping[str, Any]

PREDICTED, PRIOR, MEASURED = "predicted", "prior", "measured"
MAPPABLE = "mappable"
SHORTEST = 24  # characters of a name that stay
WORTH = 1.05  # times plain decoding: a likely gain below that is no reason for a second model
TITLES = {"any": "any text"}


def write(record: Record, file: IO[str]) -> None:
    """Nothing is left out but the middle of long names, on a terminal."""
    target = record["target"]
    what = [printable(target["name"]), printable(target["quantisation"]), size(target["size"])]
    file.write(f"target   {', '.join(one for one in what if one)}\n")
    file.write(f"for      {_task(record)}, {record['n_ctx']:,} tokens of context\n")
    file.write(f"costs    of the target {_costs(record)}\n")
    if record["drafts"]:
        file.write("\n")
        table(record["drafts"], _room(file)).write(file)
    if record["downloads"]:
        file.write("\nnot here, known to fit:\n")
        for row in record["downloads"]:
            file.write("".join(f"{line}\n" for line in download(row)))
    file.write("\n")
    for line in [*notes(record), advice(record)]:
        file.write(f"{line}\n")


def table(rows: Sequence[Record], room: int | None = None) -> Block:
    """room: characters of a line; None for as many as it takes."""
    columns = ("draft", "fits", "size", "K", "acceptance", "from", "needed", "speed-up", "by", "memory")
    cells = [_cells(row) for row in rows]
    if room is not None:
        used = sum(
            2 + max(cell_len(text) for text in (name, *(row[i] for row in cells)))
            for i, name in enumerate(columns)
            if i
        )
        longest = max(SHORTEST, room - used)
        cells = [(shortened(row[0], longest), *row[1:]) for row in cells]
    return Block("", columns, tuple(cells), 2)


def advice(record: Record) -> str:
    """One line: what to do."""
    if record["refused"]:
        return f"don't speculate here: {record['refused']}"
    target = typed(record["target"].get("reference") or record["target"]["path"])
    fitting = [row for row in record["drafts"] if row["fits"]]
    best = max(fitting, key=lambda row: (row["speedup"]["likely"], row["drafter"] != "model"), default=None)
    download = _worth_downloading(record, best)
    if best is None:
        return download or "don't speculate here: there is not even memory for the target"
    if best["speedup"]["likely"] < WORTH:
        return download or _refusal(record, best)
    said = f"{interval(best['speedup'])} {_word(best)}"
    sure = best["speedup"]["low"] > 1 or best["speedup_from"] != PREDICTED
    if best["drafter"] != "model":
        how = "no draft model is needed" if sure else "try it without a draft model"
        line = f"{how}: paceline run -m {target} ({said})"
        draft = ""
    else:
        more = " --cross-vocab auto" if best["verdict"] == MAPPABLE else ""
        draft = f" -md {typed(best['reference'])}{more}"
        line = f"{'use' if sure else 'try'}: paceline run -m {target}{draft} ({said})"
    if not sure:
        line += f"; whether it gains, `paceline bench -m {target}{draft}` tells"
    return f"{line}; better: {download}" if download else line


def notes(record: Record) -> list[str]:
    rows = [*record["drafts"], *record["downloads"]]
    out = []
    if rows:
        out.append("acceptance: how often a drafted token is right; needed: the least that gains anything")
    if any(row["width"] > 1 for row in rows):
        out.append("w2: with second guesses beside the likeliest tokens")
    if any(row["acceptance_from"] == PRIOR for row in rows):
        out.append(
            "prior: published acceptances of such pairs (docs/pairs.md); `paceline bench` measures yours"
        )
    if record["costs_from"] != MEASURED or any(row["costs_from"] != MEASURED for row in rows):
        out.append("~: costs estimated from sizes and the memory's speed; --measure measures them")
    if any(not row["memory_known"] for row in rows):
        out.append("+: and the context's part of the memory, which a header does not tell")
    if short := [printable(known_as(row["reference"])) for row in record["drafts"] if not row["fits"]]:
        out.append(f"more memory than is free ({size(record['available'])}): {', '.join(short)}")
    if any(row["verdict"] == MAPPABLE for row in record["drafts"]):
        out.append("mappable: of another vocabulary, to be used with --cross-vocab auto")
    return out


def download(row: Record) -> list[str]:
    said = f"  paceline pull {typed(row['reference'])}  ({interval(row['speedup'])} predicted)"
    why = f"    {printable(row['why'])}"
    if row["caveat"]:
        why += f"; {printable(row['caveat'])}"
    return [said, f"{why} [{printable(row['source']) or 'recalled'}]"]


def typed(reference: str) -> str:
    """As a shell takes it; it knows ~ only where that is not quoted."""
    text = printable(at_home(reference))
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") else shlex.quote(text)


def interval(gain: Record) -> str:
    return f"{gain['likely']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}]"


def shortened(text: str, room: int) -> str:
    """The end of a path tells more than its beginning."""
    return text if cell_len(text) <= room else f"…{text[-(room - 1) :]}"


def _cells(row: Record) -> tuple[str, ...]:
    estimated = "" if row["costs_from"] == MEASURED or row["speedup_from"] != PREDICTED else "~"
    right = f"{row['acceptance']['low']:.2f}-{row['acceptance']['high']:.2f}"
    return (
        printable(known_as(row["reference"])),
        row["verdict"],
        size(row["size"]) if row["size"] else NONE,
        _draft(row),
        right if row["acceptance_from"] == PRIOR else f"{row['acceptance']['likely']:.2f}",
        row["acceptance_from"],
        "never" if row["needed"] is None else f"{row['needed']:.2f}",
        estimated + interval(row["speedup"]),
        row["speedup_from"],
        size(row["memory"]) + ("" if row["memory_known"] else "+") + ("" if row["fits"] else " !"),
    )


def _draft(row: Record) -> str:
    if row["n_draft"] == 0:
        return "0"
    return f"{row['n_draft']}" + (" w2" if row["width"] > 1 else "")


def _refusal(record: Record, best: Record) -> str:
    """Why not, with the number that makes it so: of the best draft model, where there is one."""
    models = [row for row in record["drafts"] if row["drafter"] == "model" and row["fits"]]
    row = max(models, key=lambda row: row["speedup"]["likely"], default=best)
    two = f"a pass over 2 tokens costs {record['two_rows']:.1f}x one over 1"
    if row["speedup_from"] != PREDICTED:
        return f"don't speculate here: it was measured, and gained nothing ({interval(row['speedup'])})"
    if row["needed"] is None:
        return f"don't speculate here: no draft pays, however often it is right; {two}"
    expected = f"{row['acceptance']['low']:.2f} to {row['acceptance']['high']:.2f}"
    how = "is expected" if row["acceptance_from"] == PRIOR else "was measured"
    said = (
        f"don't speculate here: for any gain drafts must be right {row['needed']:.2f} of the time, and "
        f"{expected} {how} for {_task(record)}; {two}"
    )
    high = max(one["speedup"]["high"] for one in (row, best))
    return f"{said}; at best {high:.2f}x, which `paceline bench` can tell" if high >= WORTH else said


def _worth_downloading(record: Record, best: Record | None) -> str:
    rows = [row for row in record["downloads"] if row["fits"] and row["speedup"]["likely"] >= WORTH]
    if not rows:
        return ""
    row = max(rows, key=lambda row: row["speedup"]["likely"])
    if best is not None and best["speedup"]["likely"] >= row["speedup"]["likely"]:
        return ""
    return f"paceline pull {typed(row['reference'])} ({interval(row['speedup'])} predicted)"


def _word(row: Record) -> str:
    return PREDICTED if row["speedup_from"] == PREDICTED else "measured"


def _costs(record: Record) -> str:
    return f"{record['costs_from']}: 2 tokens in a pass cost {record['two_rows']:.2f}x one"


def _task(record: Record) -> str:
    return TITLES.get(record["task"], str(record["task"]))


def _room(file: IO[str]) -> int | None:
    return Console(file=file).width if file.isatty() else None
