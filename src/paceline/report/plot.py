"""Speed against what was swept: on a terminal, and as one HTML file that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.style import Style

from paceline.core.errors import MissingExtraError, UsageError
from paceline.core.printable import printable
from paceline.report.bench import PLAIN, model, overall, points
from paceline.system.whole import whole

Record = Mapping[str, Any]

CLOSE = 0.03  # of the best speedup: what a knee may be slower
# One line each, in turn; plain decoding has its own. Colours are of the terminal's palette of 256.
MARKS, COLOURS = "●▲■◆○△□◇", (9, 10, 12, 13, 14, 11)
PLAIN_MARK, PLAIN_COLOUR, KNEE_MARK = "·", 8, "★"
WIDE = 16  # from the smallest x to the largest, as a factor: beyond it doublings stand equally far apart
# Plain decoding does not depend on these. What is drawn is how much faster a method is in the same minutes:
# speeds of two points are of different minutes, and what they differ by may be the machine.
RATIOS = ("n_draft", "draft_temp", "draft_type")
KNEED = ("n_draft",)  # more of it costs something: where does it cease to pay?
BAR = 60  # characters of the longest bar
WIDTH, HEIGHT = 100, 24  # characters, in a pipe


@dataclass(frozen=True)
class Line:
    """One system: where it was measured, and what is drawn of it: its speed over plain decoding's at the
    same point, or tokens/s, and how far these may be off, down and up. kneed: whether it may have a knee.
    ratio: whether it is drawn over plain decoding."""

    name: str
    kneed: bool
    plain: bool
    ratio: bool
    x: tuple[Any, ...]
    y: tuple[float, ...]
    below: tuple[float, ...]
    above: tuple[float, ...]

    @property
    def knee(self) -> float | None:
        return knee(list(zip(self.x, self.y, strict=True))) if self.kneed else None


def knee(measured: Sequence[tuple[float, float]]) -> float | None:
    """The smallest x whose speedup is within 3% of the best: to go beyond it costs more than it gives.
    None where plain decoding is faster everywhere."""
    best = max(gain for _, gain in measured)
    return min(x for x, gain in measured if gain >= (1 - CLOSE) * best) if best > 1 else None


def lines(record: Record, x: str | None = None) -> list[Line]:
    """A line a system and, where more than x was swept, a value of the rest; none for a system without proof.
    x: by default what was swept first."""
    results = [r for r in overall(record["results"]) if r["lossless"] and r["speed"] is not None]
    swept = points(results)
    x = x or next(iter(swept), None)
    if x is not None and x not in swept:
        raise UsageError(f"{x!r} was not swept: {', '.join(swept) or 'nothing was'}")
    in_ratios = x in RATIOS and all(result["speedup"] for result in results if result["system"] != PLAIN)
    found: dict[tuple[str, str], list[Record]] = {}
    for result in results:
        rest = ", ".join(f"{name} {value}" for name, value in result["point"].items() if name != x)
        found.setdefault((result["system"], rest), []).append(result)
    out = []
    for (system, rest), some in found.items():
        y, below, above = zip(*(_drawn(result, in_ratios) for result in some), strict=True)
        name = printable(system + (f" ({rest})" if rest else ""))
        at = tuple(result["point"].get(x) if x else printable(system) for result in some)
        kneed = in_ratios and system != PLAIN and x in KNEED
        out.append(Line(name, kneed, system == PLAIN, in_ratios, at, y, below, above))
    return out


def _drawn(result: Record, in_ratios: bool) -> tuple[float, float, float]:
    """The value, and how far it may be off, down and up."""
    if not in_ratios:
        sd = result["speed_sd"] or 0.0
        return result["speed"], sd, sd
    it = result["speedup"] or {"value": 1.0, "low": 1.0, "high": 1.0}
    return it["value"], it["value"] - it["low"], it["high"] - it["value"]


def axis(drawn: Sequence[Line]) -> str:
    return "times plain decoding" if drawn and drawn[0].ratio else "tokens/s"


def numeric(drawn: Sequence[Line]) -> bool:
    return all(isinstance(x, (int, float)) for line in drawn for x in line.x)


def doubling(drawn: Sequence[Line]) -> bool:
    """Whether what was swept is seen best on a logarithmic scale, as a context's depth is."""
    if not drawn or not numeric(drawn):
        return False
    values = [x for line in drawn for x in line.x]
    return bool(min(values) > 0 and max(values) > WIDE * min(values))


def write_bars(record: Record, file: IO[str]) -> None:
    """A bar a system, as long as it is fast: for a bench whose systems are what was varied."""
    drawn = [r for r in overall(record["results"]) if r["lossless"] and r["speed"] is not None]
    if not drawn:
        return
    fastest = max(result["speed"] for result in drawn)
    width = max(len(printable(result["system"])) for result in drawn)
    room = Console(file=file).width if file.isatty() else WIDTH
    longest = max(5, min(BAR, room - width - len(f"  {fastest:.1f} tokens/s")))
    for result in drawn:
        bar = "█" * max(1, round(longest * result["speed"] / fastest))
        file.write(f"{printable(result['system']):{width}} {bar} {result['speed']:.1f} tokens/s\n")


def require_plotly() -> None:
    """Raises MissingExtraError."""
    if find_spec("plotly") is None:
        raise MissingExtraError("plots as HTML need plotly: pip install 'paceline[tune]'")


def write_plot(record: Record, file: IO[str], x: str | None = None) -> None:
    """As wide as the terminal; nothing where nothing was swept."""
    drawn, swept = lines(record, x), points(record["results"])
    if not drawn or not swept:
        return
    console = Console(file=file, highlight=False)
    coloured = console.color_system is not None and not console.no_color
    width = console.width if file.isatty() else WIDTH
    # The table above it and the prompt stay in sight.
    height = max(10, min(HEIGHT, console.height - 8)) if file.isatty() else HEIGHT
    looks = _looks(drawn)
    picture = _picture(drawn, looks, x or swept[0], width, height)
    rows = picture.string(colorless=not coloured).splitlines()
    file.write("".join(f"{row.rstrip()}\n" for row in rows))
    for line, (mark, colour) in zip(drawn, looks, strict=True):
        style = Style(color=f"color({colour})") if coloured else Style.null()
        at = f": knee ({KNEE_MARK}) at {x or swept[0]} {line.knee:g}" if line.knee is not None else ""
        file.write(f"{style.render(mark)} {line.name}{at}\n")


def _looks(drawn: Sequence[Line]) -> list[tuple[str, int]]:
    """A mark and a colour for each line: without colours the marks alone tell them apart."""
    out, n = [], 0
    for line in drawn:
        out.append(
            (PLAIN_MARK, PLAIN_COLOUR) if line.plain else (MARKS[n % len(MARKS)], COLOURS[n % len(COLOURS)])
        )
        n += not line.plain
    return out


def _picture(
    drawn: Sequence[Line], looks: Sequence[tuple[str, int]], name: str, width: int, height: int
) -> Any:
    import plotext

    plotext.terminal.limit(False, False)
    figure = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    figure.theme("colorless")
    at = _places(drawn)
    for line, (mark, colour) in zip(drawn, looks, strict=True):
        pixel = plotext.pixel(foreground=colour)
        xs = [at[value] for value in line.x]
        if len(xs) > 1:
            path = figure.signal(xs, list(line.y), marker=plotext.marker("braille", pixel=pixel))
            figure.draw(path.lines(True))
        figure.draw(figure.signal(xs, list(line.y), marker=plotext.marker(mark, pixel=pixel)))
        if line.knee is not None:
            top = [line.y[line.x.index(line.knee)]]
            figure.draw(figure.signal([at[line.knee]], top, marker=plotext.marker(KNEE_MARK, pixel=pixel)))
    figure.ruler("x").ticks(list(at.values()), [printable(str(value)) for value in at])
    ticks = _ticks([value for line in drawn for value in line.y])
    figure.ruler("y").ticks(ticks, [f"{tick:g}" for tick in ticks])
    figure.title(axis(drawn))
    figure.label(printable(name), axis="x")
    return figure.build()


def _ticks(values: Sequence[float]) -> list[float]:
    """About five round numbers over the range of the values."""
    low, high = min(values), max(values)
    rough = (high - low) / 4 or abs(high) or 1.0
    step = next(
        scale * 10.0 ** math.floor(math.log10(rough))
        for scale in (1, 2, 5, 10)
        if scale * 10.0 ** math.floor(math.log10(rough)) >= rough * 0.99
    )
    first = math.ceil(low / step)
    return [round(n * step, 10) for n in range(first, math.floor(high / step) + 1)] or [low]


def _places(drawn: Sequence[Line]) -> dict[Any, float]:
    """Where each x stands; what is no number stands side by side, in the order of the sweep."""
    values = dict.fromkeys(x for line in drawn for x in line.x)
    if not numeric(drawn):
        return {x: float(i) for i, x in enumerate(values)}
    return {x: math.log2(x) if doubling(drawn) else float(x) for x in values}


def html(record: Record, path: Path, x: str | None = None) -> None:
    """The same with error bars (of speedups 95% intervals, of speeds one standard deviation), for a
    browser, offline too; without a sweep, bars. Raises MissingExtraError and OSError."""
    require_plotly()
    import plotly.graph_objects as go

    swept, drawn = points(record["results"]), lines(record, x)
    in_ratios = any(line.ratio for line in drawn)
    figure = go.Figure()
    for line in drawn:
        errors = {"type": "data", "symmetric": False, "array": line.above, "arrayminus": line.below}
        at = f", knee at {line.knee:g}" if line.knee is not None else ""
        data = {"name": line.name + at, "x": line.x, "y": line.y, "error_y": errors}
        if not swept:
            figure.add_bar(**data)
            continue
        symbols = ["star" if x == line.knee else "circle" for x in line.x]
        marker = {"symbol": symbols, "size": [14 if symbol == "star" else 7 for symbol in symbols]}
        dash = {"dash": "dash", "color": "gray"} if line.plain else {}
        figure.add_scatter(**data, mode="lines+markers", marker=marker, line=dash)
    if swept and numeric(drawn):
        values = sorted({x for line in drawn for x in line.x})
        scale = "log" if doubling(drawn) else "linear"
        figure.update_xaxes(type=scale, tickvals=values, ticktext=[str(x) for x in values])
    figure.update_layout(
        title={"text": title(record, x or next(iter(swept), None)), "subtitle": {"text": subtitle(record)}},
        xaxis={"title": printable(x or swept[0])} if swept else {},
        yaxis={
            "title": f"{axis(drawn)} ({'95% interval' if in_ratios else '± standard deviation'})",
            "rangemode": "tozero",
        },
        template="plotly_white",
    )
    page = figure.to_html(include_plotlyjs=True, div_id="bench")
    head = f"<head><title>{escape(title(record, x or next(iter(swept), None)))}</title>"
    with whole(path) as part:
        part.write_text(page.replace("<head>", head, 1), "utf-8")


def title(record: Record, x: str | None) -> str:
    """What is drawn: of which model, on what, against what."""
    known = record["provenance"]
    name = printable((known.get("target") or {}).get("name", ""))
    suite = printable(str(known.get("suite") or ""))
    parts = ["paceline bench", *([name] if name else []), *([f"suite {suite}"] if suite else [])]
    return ", ".join([*parts, *([f"by {printable(x)}"] if x else [])])


def subtitle(record: Record) -> str:
    target = record["provenance"].get("target")
    return model(target) if target else ""
