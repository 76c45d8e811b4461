"""Terminal tables of a replay, from the record that `paceline replay --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from paceline.report.table import Block, number, write_report
from paceline.speculative.printable import count, printable

Record = Mapping[str, Any]
NONE = "-"
CACHED_COSTS = "stored"  # JSON value for costs measured on this machine
CATEGORY = ("requests", "n_tokens")
SOURCE = ("tried", "proposed", "right", "drafted", "accepted")


def write(record: Record, file: IO[str]) -> None:
    write_report(header(record), blocks(record), notes(record), file)


def header(record: Record) -> Iterator[tuple[str, str]]:
    for trace in record["files"]:
        unusable = trace["n_unusable"]
        left_out = f", {count(unusable, 'line')} that could not be used" if unusable else ""
        yield "file", f"{printable(trace['file'])}: {count(trace['requests'], 'request')}{left_out}"
    if record["tokenizer"] is not None:
        yield "tokenizer", f"{printable(record['tokenizer'])}, {record['n_vocab']:,} tokens"
    if record["draft_model"] is not None:
        yield "draft", printable(record["draft_model"])
    if record["cost_curve"] is not None:
        cached = record["cost_curve"] == CACHED_COSTS
        yield "costs", "as measured on this machine before" if cached else printable(record["cost_curve"])
    done = record["requests"]
    tokens, prompts = (sum(request[name] for request in done) for name in ("n_tokens", "n_prompt"))
    yield "replayed", f"{count(len(done), 'request')}, {count(tokens, 'token')} after {prompts:,} of prompts"
    if record["status"] != "done":
        yield "status", f"{record['status']}: what was replayed until then"


def blocks(record: Record) -> Iterator[Block]:
    """Yield the tables of methods, drafters and categories."""
    results = record["results"]
    figures: tuple[str, ...] = ("accepted/\ndrafted", "acceptance\nrate", "tokens/step\n(95% interval)")
    if any(result["predicted"] is not None for result in results):
        figures += ("tokens/s\n(95% interval)", "speed-up\n(95% interval)")
    rows = [(result["method"], *cells(result)) for result in results]
    yield Block("", ("method", *figures), tuple(rows), 1)
    rows = [
        (result["method"], name, *(f"{source[key]:,}" for key in SOURCE), acceptance_rate(source))
        for result in results
        for name, source in result["by_source"].items()
    ]
    yield Block("", ("method", "drafter", *SOURCE, "rate"), tuple(rows), 2)
    rows = [
        (printable(name) or NONE, result["method"], *(f"{part[key]:,}" for key in CATEGORY), *cells(part))
        for name in results[0]["by_category"]
        for result in results
        for part in [result["by_category"][name]]
    ]
    yield Block("", ("category", "method", "requests", "tokens", *figures), tuple(rows), 2)


def cells(sums: Record) -> tuple[str, ...]:
    accepted = f"{sums['accepted']:,}/{sums['drafted']:,}" if sums["drafted"] else NONE
    out = accepted, acceptance_rate(sums), within(sums["tokens_per_step"], "{:.2f}")
    if (predicted := sums["predicted"]) is None:
        return out
    return *out, within(predicted["tokens_per_second"], "{:.1f}"), within(predicted["speedup"], "{:.2f}")


def acceptance_rate(counts: Record) -> str:
    return number(counts["accepted"] / counts["drafted"] if counts["drafted"] else None)


def within(interval: Record, form: str) -> str:
    """Format a value with its interval, if the interval has a width."""
    value, low, high = (form.format(interval[name]) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})" if low != high else value


def notes(record: Record) -> Iterator[str]:
    yield (
        "Drafters that remember forgot before every request."
        if record["fresh"]
        else "Drafters that remember learned from the requests before, of the same file."
    )
    if (gains := record.get("expected_of_mtp")) is not None:
        yield (
            "The model's own layers for multi-token prediction (MTP) were not replayed; by the acceptance of "
            "other models' layers they make it {:.1f} to {:.1f} times as fast.".format(*gains)
        )
    if record["costs"] is None:
        yield "This is acceptance, not speed (--cost-curve predicts speeds)."
        return
    yield "Speeds are predicted from what passes cost; what prompts take is not in them."
    for result in record["results"]:
        # The policy's summary covers the time since it last forgot.
        if len(record["files"]) == 1 and not record["fresh"] and (result["policy"] or {}).get("why"):
            yield f"{result['method']}: {result['policy']['why']}."
