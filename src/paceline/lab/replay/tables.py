"""A replay for a terminal, from what `paceline replay --json` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from paceline.report.block import Block

Record = Mapping[str, Any]
NONE = "-"
MARK = "*"  # a method that reads more of the target than can be recorded


def write(record: Record, file: IO[str]) -> None:
    for name, text in header(record):
        file.write(f"{name:9} {text}\n")
    for block in (methods(record), sources(record)):
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
        yield "file", f"{printable(trace['file'])}: {counted(trace['requests'], 'request')}{skipped}"
    if record["tokenizer"] is not None:
        yield "tokenizer", f"{printable(record['tokenizer'])}, {record['n_vocab']:,} tokens"
    prompts = sum(request["n_prompt"] for request in done)
    yield "replayed", f"{counted(len(done), 'request')}, {tokens:,} tokens after {prompts:,} of prompts"
    if record["status"] != "done":
        yield "status", f"{record['status']}: what was replayed until then"


def methods(record: Record) -> Block:
    columns = (
        "method",
        "accepted/\ndrafted",
        "acceptance\nrate",
        "tokens/step\n(95% interval)",
        "steps with\na draft",
        "drafting\nus/step",
        "keeping up\nus/token",
        "prompt\nus/token",
    )
    return Block("", columns, tuple(_method(one) for one in record["results"]), 1)


def _method(one: Record) -> tuple[str, ...]:
    interval, seconds = one["tokens_per_step"], one["seconds"]
    value = f"{interval['value']:.2f}"
    if interval["low"] < interval["high"]:
        value += f" ({interval['low']:.2f} to {interval['high']:.2f})"
    rate = one["acceptance_rate"]
    return (
        one["method"] + MARK * one["partial"],
        f"{one['accepted']:,}/{one['drafted']:,}" if one["drafted"] else NONE,
        NONE if rate is None else f"{rate:.2f}",
        value,
        f"{one['drafted_steps'] / one['steps']:.0%}",
        f"{1e6 * seconds['propose'] / one['steps']:.1f}",
        f"{1e6 * seconds['observe'] / one['n_tokens']:.1f}",
        f"{1e6 * seconds['begin'] / one['n_prompt']:.1f}",
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
            f"{source['accepted'] / source['drafted']:.2f}" if source["drafted"] else NONE,
        )
        for one in record["results"]
        for name, source in one["by_source"].items()
    ]
    return Block("", columns, tuple(rows), 2)


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
    yield "This is acceptance, not speed: what a step of the target costs is not in it."


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}" + "s" * (n != 1)


def printable(text: str) -> str:
    """A file's name may hold anything: no line breaks, no terminal sequences."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
