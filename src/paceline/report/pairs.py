"""The models on a machine, the drafts for a target (`paceline pairs`), and whether one fits (`check`)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.report.table import NOT_MEASURED, Block, joined, number, size, write_table
from paceline.speculative.printable import printable
from paceline.system.terminal import wrapped

Record = Mapping[str, Any]

MAPPABLE, DRAFT_MODEL = "mappable", "draft model"
INDENT = 9  # of a line's continuation
MIN_SPEEDUP = 1.05  # from which a second model is worth its memory
MAX_NOTES = 12
WORDS = {
    "same": "it fits: the vocabulary is the target's, to the last token",
    "compatible": "it fits: token ids mean the same to both models",
    "mappable": "it fits with a translation (--cross-vocab): another vocabulary",
    "incompatible": "it does not fit",
}
PREFIX = {"fatal": "fatal: ", "mapping": "differs: ", "warning": "warning: ", "note": ""}


def write_advice(record: Record, file: IO[str]) -> None:
    target, two_rows = record["target"], record["two_rows"]
    what = [printable(target["name"]), printable(target["quantisation"]), size(target["size"])]
    file.write(f"target   {', '.join(filter(None, what))}\n")
    task = "any text" if record["task"] == "any" else record["task"]
    file.write(f"for      {task}, {record['n_ctx']:,} tokens of context\n")
    costs = "not measured yet" if two_rows is None else f"2 tokens in a pass cost {two_rows:.2f}x one"
    file.write(f"costs    {costs}\n")
    if record["drafts"]:
        file.write("\n")
        table(record["drafts"]).write(file)
    if record["downloads"]:
        file.write("\nnot here, known to fit:\n")
        file.writelines(f"{line}\n" for row in record["downloads"] for line in download(row))
    file.write("\n")
    write_kinds(record["kinds"], file)
    file.write("\n")
    file.writelines(f"{line}\n" for line in [*notes(record), advice(record)])


def write_kinds(rows: Sequence[Record], file: IO[str]) -> None:
    """Write which kinds of drafts fit a target, and the reason for each that does not (fits.what_fits)."""
    lines = ["fits     " + ", ".join(row["kind"] for row in rows if not row["reason"])]
    lines += [f"not      {row['kind']}: {row['reason']}" for row in rows if row["reason"]]
    file.writelines(wrapped(line, file, INDENT) + "\n" for line in lines)


def table(rows: Sequence[Record]) -> Block:
    columns = ("draft", "fits", "size", "family", "draft cost", "break-even", "acceptance", "speed-up", "by")
    return Block("", (*columns, "memory"), tuple(_cells(row) for row in rows), 2)


def advice(record: Record) -> str:
    """Return one line of advice."""
    target = shell_quoted(record["target"].get("reference") or record["target"]["path"])
    fitting = [row for row in record["drafts"] if row["fits"]]
    if not fitting:
        return "don't speculate here: there is not even memory for the target"
    measured = [row for row in fitting if row["measured"] is not None]
    best = max(measured, key=lambda row: row["measured"]["speedup"], default=None)
    if best is not None and best["measured"]["speedup"] >= MIN_SPEEDUP:
        message = f"({speed(best['measured'])} measured)"
        if best["drafter"] != "model":
            return f"no draft model is needed: paceline run -m {target} {message}"
        return f"use: paceline run -m {target}{_draft(best)} {message}"
    if all(row["break_even"] is not None and row["break_even"] > 1.0 for row in fitting):
        two_rows = f"a pass over 2 tokens costs {record['two_rows']:.1f}x one over 1"
        return f"don't speculate here: no draft pays, however often it is right; {two_rows}"
    if best is not None and len(measured) == len(fitting):
        at_best = f"{speed(best['measured'])} at best"
        return f"don't speculate here: it was measured, and gained nothing ({at_best})"
    if any(row["drafter"] == "mtp" and row["measured"] is None for row in fitting):
        return f"it has a head that drafts its own next tokens: paceline run -m {target} (not measured yet)"
    if direct := [row for row in record["downloads"] if row["kind"] == DRAFT_MODEL]:
        draft = shell_quoted(direct[0]["reference"])
        return f"paceline pull {draft}, or copy: paceline run -m {target}"
    task = "" if record["task"] == "any" else f" --task {record['task']}"
    return f"not measured yet: paceline pairs {target}{task} --measure, some seconds a draft"


def notes(record: Record) -> list[str]:
    rows = [*record["drafts"], *record["downloads"]]
    out = []
    if any(row["break_even"] is not None for row in rows):
        out.append(
            "draft cost: of a token, in passes of the target; break-even: the lowest acceptance that gains"
        )
    if any(row["expected"] is not None for row in rows):
        out.append("?: not measured; by the acceptance of other models' layers, and what these passes cost")
    if any(not row["memory_known"] for row in rows):
        out.append("+: and the KV cache, whose size is not in the header")
    if short := [printable(abbreviate_home(row["reference"])) for row in record["drafts"] if not row["fits"]]:
        out.append(f"more memory than is free ({size(record['available'])}): {', '.join(short)}")
    if any(row["verdict"] == MAPPABLE for row in record["drafts"]):
        out.append("mappable: of another vocabulary, to be used with --cross-vocab auto")
    return out


def download(row: Record) -> list[str]:
    why = "; ".join(filter(None, (printable(row["why"]), printable(row["caveat"]))))
    source = ", ".join(filter(None, (row["pair"], printable(row["source"]))))
    kind = "" if row["kind"] == DRAFT_MODEL else f"{row['kind']}: "
    return [f"  paceline pull {shell_quoted(row['reference'])}", f"    {kind}{why} [{source}]"]


def write_absent(record: Record, file: IO[str]) -> None:
    """Write what is known of the drafts for a model that is not on this machine."""
    target, rows = printable(record["target"]["reference"]), record["downloads"]
    file.write(f"{target} is not here: by its name {'these drafts' if rows else 'no drafts'} are known\n")
    file.writelines(f"{line}\n" for row in rows for line in download(row))
    if any(row["kind"] == "transplant" for row in rows):
        file.write(
            "  paceline transplant DRAFT --vocab-of TARGET -o OUT.gguf: a draft with the target's tokens\n"
        )
    file.write(f"paceline pull {shell_quoted(record['target']['reference'])} gets it, and pairs knows more\n")


def shell_quoted(reference: str) -> str:
    """Return a reference quoted for a shell, which expands ~ only outside quotes."""
    text = printable(abbreviate_home(reference))
    return f"~/{shlex.quote(text[2:])}" if text.startswith("~/") else shlex.quote(text)


def speed(measured: Record) -> str:
    value = f"{measured['speedup']:.2f}x"
    return value if measured["low"] is None else f"{value} [{measured['low']:.2f}, {measured['high']:.2f}]"


def expected(row: Record) -> str:
    return NOT_MEASURED if row["expected"] is None else "{:.1f} to {:.1f}x?".format(*row["expected"])


def _cells(row: Record) -> tuple[str, ...]:
    measured, needed = row["measured"], row["break_even"]
    acceptance = None if measured is None else measured["acceptance"]
    return (
        printable(abbreviate_home(row["reference"])),
        row["verdict"],
        size(row["size"]) if row["size"] else NOT_MEASURED,
        "same" if row["kin"] else NOT_MEASURED,
        number(row["draft_cost"], ".3f"),
        NOT_MEASURED if needed is None else "never" if needed > 1.0 else f"{needed:.2f}",
        number(acceptance, ".2f"),
        expected(row) if measured is None else speed(measured),
        NOT_MEASURED if measured is None else measured["source"],
        size(row["memory"]) + ("" if row["memory_known"] else "+") + ("" if row["fits"] else " !"),
    )


def _draft(row: Record) -> str:
    more = " --cross-vocab auto" if row["verdict"] == MAPPABLE else ""
    return f" -md {shell_quoted(row['reference'])}{more}"


def write_compatibility(record: Record, file: IO[str]) -> None:
    """Write the report. record: the output of `paceline check --json`."""
    why = "; ".join(reason["text"] for reason in record["reasons"] if reason["weight"] == "fatal")
    verdict = WORDS[record["verdict"]] + (f": {why}" if why else "")
    file.write(wrapped(f"{record['verdict']}: {printable(verdict)}", file) + "\n\n")
    names = {role: Path(record[role]).name for role in ("target", "draft")}
    files = {"field": "file", "weight": "note", "text": "", **names}
    write_table(
        ("", "target", "draft", "what it means"),
        [_reason(reason) for reason in [files, *record["reasons"]]],
        file,
    )
    if record["advice"]:
        file.write("\n")
    for line in record["advice"]:
        text, colon, command = f"- {printable(line)}".partition(": paceline ")
        file.write(wrapped(text + colon[:1], file, 2) + "\n")
        if command:  # on a line of its own, to be copied
            file.write(f"    paceline {command}\n")


def _reason(reason: Record) -> tuple[str, ...]:
    values = [reason[role] for role in ("target", "draft")]
    cells = ["-" if x is None else printable(x) if isinstance(x, str) else f"{x:,}" for x in values]
    return (reason["field"], *cells, printable(PREFIX[reason["weight"]] + reason["text"]))


def write_models(models: Sequence[Record], file: IO[str]) -> None:
    """Write the table. models: records of Model.as_dict (models/stores/inventory.py)."""
    rows = [
        (
            printable(abbreviate_home(model["model"]) if file.isatty() else model["model"]),
            printable(model["family"]),
            parameters(model["parameters"]),
            printable(model["quantisation"]),
            size(model["size"]),
            context(model["context"]),
            model_notes(model),
        )
        for model in models
    ]
    write_table(("model", "family", "params", "quant", "size", "context", "notes"), rows, file)


def model_notes(model: Record) -> str:
    """Return the differences from a plain transformer in a GGUF file."""
    used = f"{model['experts_used']} of " if model["experts_used"] else ""
    return joined(
        model["experts"] and f"MoE {used}{model['experts']}",
        model["memory"] != "attention" and printable(model["memory"]),
        model["sliding_window"] and f"window {context(model['sliding_window'])}",
        model["format"] != "gguf" and "safetensors",
    )


def parameters(n: int | None) -> str:
    """Return a number of parameters such as 0.6B or 12.6M."""
    if not n:
        return "-"
    unit, mark = (1e9, "B") if n >= 499.5e6 else (1e6, "M") if n >= 999.5e3 else (1e3, "K")
    return f"{n / unit:.0f}{mark}" if n >= 99.95 * unit else f"{n / unit:.1f}{mark}"


def context(n: int) -> str:
    """Return a number of tokens such as 512 or 128K."""
    if not n:
        return "-"
    return f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}"


def abbreviate_home(reference: str) -> str:
    home = str(Path.home())
    inside = reference.startswith(home.rstrip("/") + "/") and home != "/"
    return f"~{reference[len(home) :]}" if inside else reference


def no_models_lines(places: Sequence[Record]) -> list[str]:
    """Return the message for a machine without models, with the searched folders."""
    looked = dict.fromkeys(f"{printable(place['path'])} ({place['store']})" for place in places)
    return ["no models found; looked in", *(f"  {place}" for place in looked)]


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, and a line with the number of others."""
    rest = [f"and {len(notes) - MAX_NOTES} more: --json lists all"] if len(notes) > MAX_NOTES else []
    return [*map(printable, notes[:MAX_NOTES]), *rest]
