"""`paceline bench list, show, resume`: what was measured before."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.bench import AsJson, HistoryFile, app, chosen_format, opened, run, write
from paceline.cli.help import GroupedCommand
from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.lab.bench.history import History

commands = app  # `paceline bench`, with what follows
RunNumber = Annotated[str, typer.Argument(metavar="RUN", help="Its number in `bench list`, or last.")]
AsMarkdown = Annotated[bool, typer.Option("--md", help="The tables as Markdown.")]


@app.command("list", cls=GroupedCommand)
def list_runs(
    history: HistoryFile = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Most runs, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what was measured before."""
    from paceline.cli.completion import strict
    from paceline.report.bench import write_runs

    with opened(history) as kept:
        runs = [as_record(one) for one in kept.runs(limit)]
    if as_json:
        typer.echo(json.dumps(strict(runs), allow_nan=False))
    else:
        write_runs(runs, sys.stdout)


def as_record(run: Any) -> dict[str, Any]:
    return {**vars(run), "run": run.id, "results": list(run.results)}


def found(history: History, text: str) -> Any:
    """A run by its number, or the last."""
    if text != "last" and not text.isdecimal():
        raise UsageError(f"run {text!r}: give its number (`paceline bench list`), or last")
    return history.run("last" if text == "last" else int(text))


@app.command(cls=GroupedCommand)
def show(
    which: RunNumber = "last",
    history: HistoryFile = None,
    as_json: AsJson = False,
    as_md: AsMarkdown = False,
) -> None:
    """Print a run again."""
    form = chosen_format({"json": as_json, "md": as_md})
    with opened(history) as kept:
        write(as_record(found(kept, which)), form)


@app.command(cls=GroupedCommand)
def resume(
    which: RunNumber = "last",
    history: HistoryFile = None,
    as_json: AsJson = False,
    as_md: AsMarkdown = False,
) -> int:
    """Go on with a run that was cut short.

    What it had measured is kept.
    """
    from paceline.lab.bench.plan import Plan

    form = chosen_format({"json": as_json, "md": as_md})
    with opened(history) as kept:
        stored = found(kept, which)
        if stored.status == "done":
            raise UsageError(f"run {stored.id} is complete: `paceline bench show {stored.id}` prints it")
        return run(Plan.read(stored.plan), kept, stored.id, form)
