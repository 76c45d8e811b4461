"""Terminal tables of a replay, from the record that `paceline replay --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from paceline.report.table import Block, ratio, write_report
from paceline.speculative.printable import printable

Record = Mapping[str, Any]
NONE = "-"
CACHED_COSTS = "stored"  # JSON value for costs measured on this machine
SOURCE = ("tried", "proposed", "right", "drafted", "accepted")


def write(record: Record, file: IO[str]) -> None:
    blocks = (Block("", columns, tuple(rows), n_left) for columns, rows, n_left in tables(record))
    write_report(header(record), blocks, notes(record), file)


def header(record: Record) -> Iterator[tuple[str, str]]:
    for trace in record["files"]:
        unusable = trace["n_unusable"]
        left_out = f", {unusable:,} lines that could not be used" if unusable else ""
        yield "file", f"{printable(trace['file'])}: {trace['requests']:,} requests{left_out}"
    if record["tokenizer"] is not None:
        yield "tokenizer", f"{printable(record['tokenizer'])}, {record['n_vocab']:,} tokens"
    if record["draft_model"] is not None:
        yield "draft", printable(record["draft_model"])
    if record["cost_curve"] is not None:
        cached = record["cost_curve"] == CACHED_COSTS
        yield "costs", "as measured on this machine before" if cached else printable(record["cost_curve"])
    done = record["requests"]
    tokens, prompts = (sum(request[name] for request in done) for name in ("n_tokens", "n_prompt"))
    yield "replayed", f"{len(done):,} requests, {tokens:,} tokens after {prompts:,} of prompts"
    if record["status"] != "done":
        yield "status", f"{record['status']}: what was replayed until then"


def tables(record: Record) -> Iterator[tuple[tuple[str, ...], list[tuple[str, ...]], int]]:
    """Yield columns, rows and the number of left-aligned columns for speeds, methods, drafters and
    categories."""
    results = record["results"]
    timed = [one for one in results if one["predicted"] is not None]
    yield (
        ("method", "tokens/s\n(95% interval)", "speed-up\n(95% interval)"),
        [(one["method"], *speed(one["predicted"])) for one in timed],
        1,
    )
    yield (
        ("method", "accepted/\ndrafted", "acceptance\nrate", "tokens/step\n(95% interval)"),
        [
            (
                one["method"],
                f"{one['accepted']:,}/{one['drafted']:,}" if one["drafted"] else NONE,
                ratio(one["acceptance_rate"]),
                within(one["tokens_per_step"], "{:.2f}"),
            )
            for one in results
        ],
        1,
    )
    yield (
        ("method", "drafter", *SOURCE, "rate"),
        [
            (
                one["method"],
                name,
                *(f"{source[key]:,}" for key in SOURCE),
                ratio(source["accepted"] / source["drafted"] if source["drafted"] else None),
            )
            for one in results
            for name, source in one["by_source"].items()
        ],
        2,
    )
    yield (
        ("category", "method", "requests", "tokens", "acceptance\nrate", "tokens/step")
        + (("tokens/s\n(95% interval)", "speed-up\n(95% interval)") if timed else ()),
        [
            (
                printable(name) or NONE,
                one["method"],
                f"{one['by_category'][name]['requests']:,}",
                f"{one['by_category'][name]['n_tokens']:,}",
                ratio(one["by_category"][name]["acceptance_rate"]),
                f"{one['by_category'][name]['tokens_per_step']['value']:.2f}",
                *(speed(one["by_category"][name]["predicted"]) if timed else ()),
            )
            for name in results[0]["by_category"]
            for one in results
        ],
        2,
    )


def speed(predicted: Record) -> tuple[str, str]:
    return within(predicted["tokens_per_second"], "{:.1f}"), within(predicted["speedup"], "{:.2f}")


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
    if record["costs"] is None:
        yield (
            "This is acceptance, not speed: what a step of the target costs is not in it "
            "(--cost-curve predicts speeds)."
        )
        return
    yield "Speeds are predicted from what passes cost; what prompts take is not in them."
    for one in record["results"]:
        # The policy's summary covers the time since it last forgot.
        if len(record["files"]) == 1 and not record["fresh"] and (one["policy"] or {}).get("why"):
            yield f"{one['method']}: {one['policy']['why']}."
