"""What passes cost, as tables and as a plot in steps, from the record that `doctor --json` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from paceline.core.cost import Cost
from paceline.core.errors import MissingExtraError
from paceline.report.bench import NONE, header, model
from paceline.report.block import Block

Record = Mapping[str, Any]
Curve = Sequence[tuple[int, float]]  # rows and seconds

BAR = 16  # characters of the dearest pass
ALIKE = 0.03  # of what a pass costs: less is no difference
DEAR = 2.0  # times what a row costs on the whole curve
UNSTEADY = 1.5  # the upper quartile of one pass's times over the lower
NEVER = "never"
WITHOUT = "without kernels"  # a key of the record, and the stage that finds it


def write(record: Record, file: IO[str]) -> None:
    for name, text in header({"provenance": record["made"], "results": ()}):
        file.write(f"{name:9} {text}\n")
    for block in blocks(record):
        file.write(f"\n{block.title}\n")
        block.write(file)
    file.write("\n")
    for line in notes(record):
        file.write(f"{line}\n")


def blocks(record: Record) -> list[Block]:
    draft = None if record["draft"] is None else Cost.read(record["draft"])
    out = []
    others = list(curves(record[WITHOUT]).values())[:1] if record.get(WITHOUT) else []
    for depth, curve in curves(record["target"]).items():
        token = None if draft is None else draft.seconds(1, depth)
        block = table(curve, depth, token, dict(others.pop()) if others else {})
        out.append(bare(block) if record["doubts"] else block)
    if draft is not None:
        out += [short_table(curve, depth) for depth, curve in curves(record["draft"]).items()]
    return out


def notes(record: Record) -> list[str]:
    if record["doubts"]:
        return [
            f"{role}: {said}: the machine was too busy to tell; run again (--again) when it is calm"
            for role, said in record["doubts"].items()
        ]
    out = [
        "break-even: how often a drafted token must be right for a draft of rows - 1 tokens to lose nothing",
        "fill up to n: n rows cost no more than these; free: no more than the line above;",
        "dear: its rows cost over twice the usual",
    ]
    if record["draft"] is not None:
        depth = record["target"]["depths"][0]
        token, plain = (Cost.read(record[role]).seconds(1, depth) for role in ("draft", "target"))
        out.append(
            "with draft: the same, with the draft model's own time: a token takes "
            f"{ms(token, token)} ms, {token / plain:.0%} of a row of the target"
        )
    if record.get(WITHOUT):
        out.append(f"without kernels: with llama.cpp's, after {record[WITHOUT]['depths'][0]:,} tokens")
    for role, noise in record["noise"].items():
        if noise > UNSTEADY:
            out.append(
                f"{role}: times of one and the same pass lie {noise:.1f}x apart; the machine is busy: "
                "measure again later (--again)"
            )
    return out


def bare(block: Block) -> Block:
    """A table of passes without what is concluded from their times."""
    return replace(
        block, columns=block.columns[:4], rows=tuple((row[0], row[1], "", row[3]) for row in block.rows)
    )


def curves(cost: Record) -> dict[int, Curve]:
    """What was measured, by depth."""
    return {
        depth: [(n, s) for n, s in zip(cost["rows"], line, strict=True) if s is not None]
        for depth, line in zip(cost["depths"], cost["seconds"], strict=True)
    }


def break_even(ratio: float, rows: int) -> float | None:
    """The acceptance a at which 1 + a + ... + a^(rows - 1) tokens of a pass that costs `ratio` of a plain one
    come as fast as plain decoding's; None where not even certainty suffices."""
    if ratio >= rows:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        a = (low + high) / 2
        if sum(a**i for i in range(rows)) < ratio:
            low = a
        else:
            high = a
    return high


def marks(curve: Curve) -> list[str]:
    """For each pass what its neighbours make of it: better to fill it up, or its last rows free, or dear."""
    (least, first), (most, last) = curve[0], curve[-1]
    usual = (last - first) / max(1, most - least)
    out = [""]
    for i in range(1, len(curve)):
        (before, cheaper), (n, seconds) = curve[i - 1], curve[i]
        better = [m for m, s in curve[i + 1 :] if s <= seconds]
        if better:
            out.append(f"fill up to {better[-1]}")
        elif seconds <= cheaper * (1 + ALIKE):
            out.append("free")
        elif (seconds - cheaper) / (n - before) > DEAR * usual:
            out.append("dear")
        else:
            out.append("")
    return out


def table(curve: Curve, depth: int, token: float | None, without: Mapping[int, float]) -> Block:
    """token: seconds of a draft model's, where there is one. without: seconds by rows with the engine's own
    kernels, where ours compute."""
    plain, dearest = curve[0][1], max(seconds for _, seconds in curve)
    columns = ["rows", "", "", "ms", "relative", "ms a row", "break-\neven"]
    rows = []
    for (n, seconds), mark in zip(curve, marks(curve), strict=True):
        bar = "█" * max(1, round(BAR * seconds / dearest))
        row = [f"{n:4}", bar, mark, ms(seconds, plain), f"{seconds / plain:.2f}", ms(seconds / n, plain)]
        row.append(needed(seconds / plain, n))
        if token is not None:
            row.append(needed((seconds + (n - 1) * token) / plain, n))
        if without:
            row.append(ms(without[n], plain) if n in without else NONE)
        rows.append(tuple(row))
    if token is not None:
        columns.append("with\ndraft")
    if without:
        columns.append("ms, without\nkernels")
    return Block(f"target, after {depth:,} tokens", tuple(columns), tuple(rows), 3)


def short_table(curve: Curve, depth: int) -> Block:
    plain = curve[0][1]
    rows = [(f"{n:4}", ms(seconds, plain), f"{seconds / plain:.2f}") for n, seconds in curve]
    return Block(f"draft model, after {depth:,} tokens", ("rows", "ms", "relative"), tuple(rows), 1)


def needed(ratio: float, rows: int) -> str:
    if rows == 1:
        return NONE
    acceptance = break_even(ratio, rows)
    return NEVER if acceptance is None else f"{acceptance:.2f}"


def ms(seconds: float, least: float) -> str:
    """With as many decimals as the least of its column has three digits."""
    decimals = max(0, 2 - math.floor(math.log10(least * 1e3)))
    return f"{seconds * 1e3:.{decimals}f}"


def require_plotly() -> None:
    """Raises MissingExtraError."""
    if find_spec("plotly") is None:
        raise MissingExtraError("plots as HTML need plotly: pip install 'paceline[tune]'")


def html(record: Record, path: Path) -> None:
    """A line for each depth in one file, for a browser, offline too. Drawn in steps, as Cost takes it: what
    lies between two measured passes costs what the larger one does. Raises MissingExtraError."""
    require_plotly()
    import plotly.graph_objects as go

    figure = go.Figure()
    for depth, curve in curves(record["target"]).items():
        figure.add_scatter(
            name=f"after {depth:,} tokens",
            x=[n for n, _ in curve],
            y=[seconds * 1e3 for _, seconds in curve],
            mode="lines+markers",
            line={"shape": "vh"},
        )
    figure.update_layout(
        title=model(record["made"]["target"]),
        xaxis={"title": "rows of a pass", "rangemode": "tozero"},
        yaxis={"title": "milliseconds", "rangemode": "tozero"},
        showlegend=True,
        template="plotly_white",
    )
    figure.write_html(path, include_plotlyjs=True, div_id="costs")
