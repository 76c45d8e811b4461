"""`paceline bench list, show, compare, resume, rm`: what was measured before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.bench import AsJson, HistoryFile, app, check_plot, chosen_format, opened, run, write
from paceline.cli.help import GroupedCommand
from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.lab.bench.history import History

commands = app  # `paceline bench`, with what follows
RunNumber = Annotated[str, typer.Argument(metavar="RUN", help="Its number in `bench list`, or last.")]
AsLines = Annotated[bool, typer.Option("--jsonl", help="A JSON object a row.")]
AsMarkdown = Annotated[bool, typer.Option("--md", help="The tables as Markdown.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="The rows as CSV.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="A plot as one HTML file.")]


@app.command("list", cls=GroupedCommand)
def list_runs(
    history: HistoryFile = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Most runs, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what was measured before."""
    from paceline.cli.completion import strict
    from paceline.report.comparison import write_runs

    with opened(history) as kept:
        runs = [as_record(one) for one in kept.runs(limit)]
    if as_json:
        typer.echo(json.dumps(strict(runs), allow_nan=False))
    else:
        write_runs(runs, sys.stdout)


def as_record(run: Any) -> dict[str, Any]:
    return {**vars(run), "run": run.id, "results": list(run.results)}


def measurements(
    groups: Mapping[tuple[int, int, str], Sequence[Mapping[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Every one, as in the record of a bench that has just ended."""
    for (point, round_, item), told in groups.items():
        for one in told:
            yield {"point": point, "round": round_, "item": item, **one}


def found(history: History, text: str) -> Any:
    """A run by its number, or the last."""
    if text != "last" and not text.isdecimal():
        raise UsageError(f"run {text!r}: give its number (`paceline bench list`), or last")
    if text != "last" and int(text) >= 2**63:
        raise UsageError(f"run {text}: there is no such run")
    return history.run("last" if text == "last" else int(text))


@app.command(cls=GroupedCommand)
def show(
    which: RunNumber = "last",
    history: HistoryFile = None,
    as_json: AsJson = False,
    as_jsonl: AsLines = False,
    as_md: AsMarkdown = False,
    as_csv: AsCsv = False,
    plot: Plot = None,
) -> None:
    """Print a run again."""
    form = chosen_format({"json": as_json, "jsonl": as_jsonl, "md": as_md, "csv": as_csv})
    check_plot(plot)
    with opened(history) as kept:
        run_ = found(kept, which)
        record = as_record(run_)
        if form == "json":
            record["measurements"] = list(measurements(kept.groups(run_.id)))
    write(record, form)
    if plot is not None:
        from paceline.report.plot import html

        html(record, plot)


@app.command(cls=GroupedCommand)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The earlier run's number.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The later one's.")] = "last",
    history: HistoryFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare two runs: what became faster or slower.

    Where they did not measure the same work, or not on the same machine, it says so.
    """
    from paceline.report import comparison

    with opened(history) as kept:
        before, after = as_record(found(kept, a)), as_record(found(kept, b))
    if as_json:
        unlike = [
            {"what": name, "a": left, "b": right}
            for name, left, right in comparison.differences(before, after)
        ]
        typer.echo(json.dumps({"changes": comparison.changes(before, after), "differences": unlike}))
    else:
        comparison.write_comparison(before, after, sys.stdout)


@app.command(cls=GroupedCommand)
def resume(
    which: RunNumber = "last",
    history: HistoryFile = None,
    as_json: AsJson = False,
    as_jsonl: AsLines = False,
    as_md: AsMarkdown = False,
    as_csv: AsCsv = False,
    plot: Plot = None,
) -> int:
    """Go on with a run that was cut short.

    What it had measured is kept.
    """
    from paceline.lab.bench.plan import Plan

    form = chosen_format({"json": as_json, "jsonl": as_jsonl, "md": as_md, "csv": as_csv})
    check_plot(plot)
    with opened(history) as kept:
        stored = found(kept, which)
        if stored.status == "done":
            raise UsageError(f"run {stored.id} is complete: `paceline bench show {stored.id}` prints it")
        kept.check_idle(stored.id)
        return run(Plan.read(stored.plan), kept, stored.id, form, plot)


@app.command("rm", cls=GroupedCommand)
def remove(
    which: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Numbers of runs.", show_default=False)
    ],
    history: HistoryFile = None,
) -> None:
    """Remove runs from the history."""
    with opened(history) as kept:
        for number in [found(kept, one).id for one in dict.fromkeys(which)]:
            kept.delete(number)
