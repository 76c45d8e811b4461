"""Tables for terminals and pipes, and text with its drafted parts marked.

Cells are never cropped; piped tables are never wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import IO, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.table import Table

from paceline.drafter_table import DRAFTERS
from paceline.speculative.printable import count
from paceline.speculative.stats import TARGET
from paceline.system.terminal import wrapped

NOT_MEASURED = "-"
MAX_COLUMN_WIDTH = 10_000
COLUMN_GAP = 2
MIN_WRAPPED, MAX_NAME = 12, 24  # characters of a wrapped column, and of a name that is not wrapped
BAR_WIDTH = 16  # characters of the longest bar

STYLES = {row.source or row.name: Style.parse(row.colour) for row in DRAFTERS.values() if row.colour}
OTHER = Style.parse("bold")  # for a source without a colour
PHASES = {
    "draft": "proposing",
    "forward": "the target's passes",
    "verify": "verifying",
    "commit": "committing and rolling back",
    "other": "policy and scheduling",
}


@dataclass(frozen=True)
class Block:
    """A titled table. The first n_left columns are words, the others figures."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_left: int

    def write(self, file: IO[str]) -> None:
        write_table(self.columns, self.rows, file, self.n_left)


def write_report(
    header: Iterable[tuple[str, str]], blocks: Iterable[Block], notes: Iterable[str], file: IO[str]
) -> None:
    """Write named facts, the tables that have rows, and closing lines."""
    for name, text in header:
        file.write(wrapped(f"{name:9} {text}", file, 10) + "\n")
    for block in blocks:
        if block.rows:
            file.write(f"\n{block.title}\n" if block.title else "\n")
            block.write(file)
    file.write("\n")
    file.writelines(f"{wrapped(line, file)}\n" for line in notes)


def size(n_bytes: int | None) -> str:
    """Return a size in decimal units: 4.7 GB, 850 MB."""
    if n_bytes is None:
        return NOT_MEASURED
    if n_bytes >= 999.5e6:
        return f"{n_bytes / 1e9:.1f} GB" if n_bytes < 99.95e9 else f"{n_bytes / 1e9:.0f} GB"
    return f"{n_bytes / 1e6:.1f} MB" if n_bytes < 9.95e6 else f"{n_bytes / 1e6:.0f} MB"


def bar(value: float, largest: float) -> str:
    """Return a bar in proportion to the largest value."""
    return "█" * max(1, round(BAR_WIDTH * value / largest)) if largest > 0 else ""


def number(value: float | None, pattern: str = ".2f", scale: float = 1.0) -> str:
    return NOT_MEASURED if value is None else format(value * scale, pattern)


def joined(*parts: Any) -> str:
    """Return the texts among the parts, of which others are false, with commas between them."""
    return ", ".join(filter(None, parts))


def summary(run: Mapping[str, Any]) -> str:
    """Return a generation's speed and the tokens' sources in one line. run: as of `paceline run --json`.
    plain_tokens_per_second: of a few tokens after the answer, if they were measured."""
    speed, plain = run["tokens_per_second"], run.get("plain_tokens_per_second")
    by_source = run["stats"]["by_source"].items()
    shares = [f"{name} {s['accepted'] / run['n_tokens']:.0%}" for name, s in by_source if s["accepted"]]
    gain = f"about {speed / plain:.1f}x plain decoding" if plain else "drafted"
    return joined(
        f"{speed:.{0 if speed >= 100 else 1}f} tokens/s",
        f"{gain} ({', '.join(shares)})" if shares else run["n_tokens"] and "plain decoding",
        run.get("n_skipped") and f"{count(run['n_skipped'], 'token')} of the prompt left out",
        run["stop_reason"] == "context" and "the context is full (-c)",
    )


def details(run: Mapping[str, Any]) -> str:
    """Return the counts of a generation in one line. run: the output of `paceline run --json`."""
    stats = run["stats"]
    parts = [count(run["n_tokens"], "token"), *prompt(run)]
    if stats["drafted"]:
        drafted = {name: s for name, s in stats["by_source"].items() if s["drafted"]}
        shares = ", ".join(f"{name} {s['accepted']}/{s['drafted']}" for name, s in drafted.items())
        parts.append(f"acceptance rate {number(stats['acceptance_rate'])} ({shares})")
        parts.append(f"acceptance length {number(stats['acceptance_length'])}")
        tried = [(name, s["proposed"], s) for name, s in stats["by_source"].items() if s["tried"]]
        hits = [f"{name} {n / s['tried']:.0%} ({s['right']}/{n} right)" for name, n, s in tried]
        parts.append(f"hit rate {', '.join(hits)}")
    if plain := run.get("plain_tokens_per_second"):
        parts.append(f"efficiency {number(efficiency(run, plain))}")
    if why := (run.get("policy") or {}).get("why"):
        parts.append(why)
    return "; ".join(parts)


def efficiency(run: Mapping[str, Any], plain: float) -> float:
    """Return speedup / (1 + the time of drafting over that of all else). plain: tokens/s."""
    times = run["stats"]["time"]
    rest = 1.0 - times["draft"] / (sum(times.values()) or 1.0)
    return float(run["tokens_per_second"] / plain * rest)


def prompt(run: Mapping[str, Any]) -> list[str]:
    """Return what the cache had of the prompt, and the speed of the prefill of the rest."""
    speed = run["prompt_tokens_per_second"]
    caches = (("", run.get("n_cached")), ("by the draft ", run.get("draft_n_cached")))
    out = [f"{count(n, 'token')} of the prompt reused {by}".strip() for by, n in caches if n]
    return out if speed is None else [*out, f"prompt {count(run['n_read'], 'token')}, {speed:.1f} tokens/s"]


def comparison(record: Mapping[str, Any], verdict: str, file: IO[str]) -> None:
    """Write a comparison. record: the output of `paceline run --compare --json`."""
    plain, drafted = record["plain"], record["drafted"]
    rows, fastest = [], max(plain["tokens_per_second"], drafted["tokens_per_second"])
    for name, run in (("plain", plain), ("drafted", drafted)):
        stats = run["stats"]
        speed, baseline = run["tokens_per_second"], plain["tokens_per_second"]
        acceptance = [number(stats[key]) for key in ("acceptance_rate", "acceptance_length")]
        figures = (f"{run['n_tokens']}", f"{speed:.1f}", f"{speed / baseline:.2f}x", *acceptance)
        rows.append((name, bar(speed, fastest), *figures))
    columns = ("", "", "tokens", "tokens/s", "speedup", "acceptance\nrate", "acceptance\nlength")
    write_table(columns, rows, file, 2)
    by_source = drafted["stats"]["by_source"]
    if len(by_source) > 1:  # each drafter's steps (called, verified, accepted) and tokens (drafted, accepted)
        names = ("tried", "proposed", "right", "drafted", "accepted")
        rows = [(name, *(f"{s[key]}" for key in names)) for name, s in by_source.items()]
        write_table(("drafter", *names), rows, file, 1)
    if why := (drafted.get("policy") or {}).get("why"):
        file.write(f"{wrapped(why, file)}\n")
    file.write("".join(f"{line}\n" for line in prompt(record)))
    file.write(f"output identical: {verdict}\n")


def write_phases(run: Mapping[str, Any], file: IO[str]) -> None:
    """Write the time of each phase of a run. run: the output of `paceline run --json`."""
    stats = run["stats"]
    steps, total = max(1, stats["steps"]), sum(stats["time"].values())
    spent = {PHASES[name]: seconds for name, seconds in stats["time"].items()} | {"all": total}
    rows = [
        (phase, f"{1e3 * s:.1f}", f"{s / total:.1%}" if total else "-", f"{1e6 * s / steps:.0f}")
        for phase, s in spent.items()
    ]
    write_table((f"time of {count(stats['steps'], 'step')}", "ms", "share", "us/step"), rows, file, 1)


def write_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], file: IO[str], n_left: int | None = None
) -> None:
    """Write a table. The first `n_left` columns (by default all) are words, the others figures.
    On a narrow terminal words are wrapped, and columns without room follow in further tables."""
    n_words = len(columns) if n_left is None else n_left
    width = None if file.isatty() else MAX_COLUMN_WIDTH
    console = Console(file=file, highlight=False, markup=False, emoji=False, width=width)
    by_column = list(zip(columns, *rows, strict=True))
    widths = [max(cell_len(line) for cell in cells for line in cell.split("\n")) for cells in by_column]
    minimum = [min(MIN_WRAPPED, width) if i < n_words else width for i, width in enumerate(widths)]
    minimum[0] = max(minimum[0], min(widths[0], MAX_NAME))
    ends = accumulate(width + COLUMN_GAP for width in minimum)
    # At least two, so that a second table is narrower.
    fitting = max(min(2, len(columns)), sum(end - COLUMN_GAP <= console.width for end in ends))
    if fitting < len(columns):
        for part in (range(fitting), [0, *range(fitting, len(columns))]):
            cells = [[line[i] for i in part] for line in (columns, *rows)]
            write_table(cells[0], cells[1:], file, sum(i < n_words for i in part))
            file.write("\n" * (part == range(fitting)))
        return
    console.width = max(console.width, sum(minimum) + COLUMN_GAP * (len(widths) - 1))
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns):
        justify: Literal["left", "right"] = "left" if i < n_words else "right"
        table.add_column(name, justify=justify, no_wrap=i >= n_words, overflow="fold", min_width=minimum[i])
    for row in rows:
        table.add_row(*row)
    # rich would exit at a closed pipe, with another code.
    with console.capture() as captured:
        console.print(table)
    file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


class SourceMarks:
    """Marks of drafted text by drafter: colours on a terminal (NO_COLOR and TERM=dumb are obeyed), brackets
    elsewhere. The target's text has none."""

    def __init__(self, console: Console) -> None:
        self._coloured = console.color_system is not None and not console.no_color

    def marked(self, parts: Iterable[tuple[str, str]]) -> str:
        groups = groupby((part for part in parts if part[0]), key=lambda part: part[1])
        return "".join(self._mark("".join(text for text, _ in group), source) for source, group in groups)

    def legend(self, drafters: Sequence[str]) -> str:
        marked = [self._mark(name if self._coloured else "text", name) for name in drafters if name != "none"]
        return "sources: " + ", ".join([TARGET, *marked])

    def _mark(self, text: str, source: str) -> str:
        if source == TARGET:
            return text
        # Console.print would drop control characters and expand tabs.
        return STYLES.get(source, OTHER).render(text) if self._coloured else f"[{source}:{text}]"
