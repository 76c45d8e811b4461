"""The tables of the costs of passes, from the record of `doctor --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.bench import header
from paceline.report.table import NOT_MEASURED, Block, bar, write_report
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.speedup_formulas import break_even

Record = Mapping[str, Any]
Curve = Sequence[tuple[int, float]]  # rows and seconds

UNSTEADY_JITTER = 1.5  # upper over lower quartile of a pass's times
NEVER_PAYS = "never"


def write(record: Record, file: IO[str]) -> None:
    facts = header({"provenance": record["provenance"], "results": ()})
    write_report(facts, blocks(record), notes(record), file)


def blocks(record: Record) -> list[Block]:
    draft = None if record["draft"] is None else PassCosts.read(record["draft"])
    out = []
    for depth, curve in curves(record["target"]).items():
        token = None if draft is None else draft.seconds(1, depth)
        # From doubtful times nothing is concluded.
        out.append(table("target", curve, depth, token, break_evens=not record["doubts"]))
    if draft is not None:
        out += [table("draft model", curve, depth) for depth, curve in curves(record["draft"]).items()]
    return out


def notes(record: Record) -> list[str]:
    if record["doubts"]:
        return [
            f"{role}: {doubt}: the machine was too busy to tell; run again (--refresh) when it is calm"
            for role, doubt in record["doubts"].items()
        ]
    out = [
        "break-even: how often a drafted token must be right for a draft of rows - 1 tokens to lose nothing"
    ]
    if record["draft"] is not None:
        depth = record["target"]["depths"][0]
        token, plain = (PassCosts.read(record[role]).seconds(1, depth) for role in ("draft", "target"))
        out.append(
            "with draft: the same, with the draft model's own time: a token takes "
            f"{milliseconds(token, token)} ms, {token / plain:.0%} of a row of the target"
        )
    return out + [
        f"{role}: times of one and the same pass lie {noise:.1f}x apart; the machine is busy: "
        "measure again later (--refresh)"
        for role, noise in record["noise"].items()
        if noise > UNSTEADY_JITTER
    ]


def curves(cost: Record) -> dict[int, Curve]:
    """Return the measured curve of each context length."""
    return {
        depth: [(n, s) for n, s in zip(cost["rows"], line, strict=True) if s is not None]
        for depth, line in zip(cost["depths"], cost["seconds"], strict=True)
    }


def table(
    role: str, curve: Curve, depth: int, token: float | None = None, *, break_evens: bool = False
) -> Block:
    """Return the table of one curve. token: seconds of a draft model's token, for its own break-even."""
    plain, longest = curve[0][1], max(seconds for _, seconds in curve)
    columns = ["rows", "", "ms", "relative", "ms a row", "break-\neven", "with\ndraft"]
    n_columns = 4 if not break_evens else 6 if token is None else 7
    rows = []
    for n, seconds in curve:
        row = [f"{n:4}", bar(seconds, longest), milliseconds(seconds, plain), f"{seconds / plain:.2f}"]
        row += [milliseconds(seconds / n, plain), format_break_even(seconds / plain, n)]
        row.append(format_break_even((seconds + (n - 1) * (token or 0.0)) / plain, n))
        rows.append(tuple(row[:n_columns]))
    return Block(f"{role}, after {depth:,} tokens", tuple(columns[:n_columns]), tuple(rows), 2)


def format_break_even(ratio: float, rows: int) -> str:
    if rows == 1:
        return NOT_MEASURED
    acceptance = break_even(ratio, rows - 1)
    return NEVER_PAYS if acceptance is None or acceptance >= 1.0 else f"{acceptance:.2f}"


def milliseconds(seconds: float, minimum: float) -> str:
    """Return milliseconds, with three significant digits of the column's minimum."""
    decimals = max(0, 2 - math.floor(math.log10(minimum * 1e3)))
    return f"{seconds * 1e3:.{decimals}f}"
