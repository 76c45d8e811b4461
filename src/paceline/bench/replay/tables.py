"""A replay for a terminal, from what `paceline replay --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from paceline.report.table import Block
from paceline.speculative.printable import printable

Record = Mapping[str, Any]
NONE = "-"
KEPT = "kept"  # in place of a cost curve's file
MARK = "*"  # a method that reads more of the target than can be recorded


def write(record: Record, file: IO[str]) -> None:
    for name, text in header(record):
        file.write(f"{name:9} {text}\n")
    for block in (speeds(record), methods(record), sources(record), categories(record)):
        if block.rows:
            file.write("\n")
            block.write(file)
    file.write("\n")
    for line in notes(record):
        file.write(f"{line}\n")


def header(record: Record) -> Iterator[tuple[str, str]]:
    done = record["requests"]
    tokens = sum(request["n_tokens"] for request in done)
    for trace in record["files"]:
        skipped = f", {trace['skipped']:,} without an answer left out" if trace["skipped"] else ""
        if trace["n_unusable"]:
            skipped += f", {counted(trace['n_unusable'], 'line')} that could not be used"
        yield "file", f"{printable(trace['file'])}: {counted(trace['requests'], 'request')}{skipped}"
    if record["tokenizer"] is not None:
        yield "tokenizer", f"{printable(record['tokenizer'])}, {record['n_vocab']:,} tokens"
    if record["draft_model"] is not None:
        yield "draft", printable(record["draft_model"])
    if record["cost_curve"] is not None:
        kept = record["cost_curve"] == KEPT
        yield "costs", "as measured on this machine before" if kept else printable(record["cost_curve"])
    prompts = sum(request["n_prompt"] for request in done)
    yield "replayed", f"{counted(len(done), 'request')}, {tokens:,} tokens after {prompts:,} of prompts"
    if record["status"] != "done":
        yield "status", f"{record['status']}: what was replayed until then"


def speeds(record: Record) -> Block:
    """Predicted; nothing where no costs are known. Columns that nobody has a figure for are left out."""
    columns = (
        "method",
        "tokens/s\n(95% interval)",
        "speed-up\n(95% interval)",
        "measured\n(off by)",
    )
    rows = [_speed(one) for one in record["results"] if one["predicted"] is not None]
    shown = [i for i in range(len(columns)) if any(row[i] != NONE for row in rows)]
    return Block("", tuple(columns[i] for i in shown), tuple(tuple(row[i] for i in shown) for row in rows), 1)


def _speed(one: Record) -> tuple[str, ...]:
    predicted, measured = one["predicted"], one["measured"]
    return (
        one["method"],
        within(predicted["tokens_per_second"], "{:.1f}"),
        within(predicted["speedup"], "{:.2f}"),
        NONE if measured is None else f"{measured['measured']:.1f} ({measured['off']:+.0%})",
    )


def within(interval: Record, form: str) -> str:
    """A value, and its interval where there is one."""
    value, low, high = (form.format(interval[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})" if low != high else value


def methods(record: Record) -> Block:
    columns = (
        "method",
        "accepted/\ndrafted",
        "acceptance\nrate",
        "tokens/step\n(95% interval)",
    )
    return Block("", columns, tuple(_method(one) for one in record["results"]), 1)


def _method(one: Record) -> tuple[str, ...]:
    return (
        one["method"] + MARK * one["partial"],
        f"{one['accepted']:,}/{one['drafted']:,}" if one["drafted"] else NONE,
        rate(one["accepted"], one["drafted"]),
        within(one["tokens_per_step"], "{:.2f}"),
    )


def sources(record: Record) -> Block:
    """Who drafted what."""
    columns = ("method", "drafter", "tried", "proposed", "right", "drafted", "accepted", "rate")
    names = columns[2:7]
    rows = [
        (
            one["method"],
            name,
            *(f"{source[key]:,}" for key in names),
            rate(source["accepted"], source["drafted"]),
        )
        for one in record["results"]
        for name, source in one["by_source"].items()
    ]
    return Block("", columns, tuple(rows), 2)


def categories(record: Record) -> Block:
    columns = ["category", "method", "requests", "tokens", "acceptance\nrate", "tokens/step"]
    if timed := any(one["predicted"] is not None for one in record["results"]):
        columns += ["tokens/s", "speed-up\n(95% interval)"]
    rows = []
    for name in record["results"][0]["by_category"]:
        for one in record["results"]:
            some = one["by_category"][name]
            row = [printable(name) or NONE, one["method"], f"{some['requests']:,}", f"{some['n_tokens']:,}"]
            row += [rate(some["accepted"], some["drafted"]), f"{some['tokens_per_step']['value']:.2f}"]
            if timed:
                predicted = some["predicted"]
                row += [
                    f"{predicted['tokens_per_second']['value']:.1f}",
                    within(predicted["speedup"], "{:.2f}"),
                ]
            rows.append(tuple(row))
    return Block("", tuple(columns), tuple(rows), 2)


def rate(accepted: int, drafted: int) -> str:
    return f"{accepted / drafted:.2f}" if drafted else NONE


def notes(record: Record) -> Iterator[str]:
    partial = [one["method"] for one in record["results"] if one["partial"]]
    if partial:
        yield (
            f"{MARK} {', '.join(partial)}: learns from what the target says after wrong guesses too, which "
            "no record holds: with the model it may do better"
        )
    yield (
        "Drafters that remember forgot before every request."
        if record["fresh"]
        else "Drafters that remember learned from the requests before, of the same file."
    )
    if record["costs"] is None:
        yield (
            "This is acceptance, not speed: what a step of the target costs is not in it "
            "(--cost-curve predicts speeds)."
        )
        return
    yield "Speeds are predicted from what passes cost; what prompts take is not in them."
    if any(one["measured"] is not None for one in record["results"]):
        yield "Measured: when recorded with the same settings. Off by: how much too fast the prediction is."
    remembers_all = len(record["files"]) == 1 and not record["fresh"]
    for one in record["results"]:
        # A policy's account is of what it remembers.
        if remembers_all and one["policy"] is not None and one["policy"]["why"]:
            yield f"{one['method']}: {one['policy']['why']}."


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}" + "s" * (n != 1)
