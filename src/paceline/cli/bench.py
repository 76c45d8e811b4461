"""`paceline bench`: every method and every other system measured the same way, and what was measured
before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.exits import INTERRUPTED
from paceline.cli.groups import drafting, models, sampling, takes
from paceline.cli.help import GroupedCommand, GroupedGroup
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, flag, option
from paceline.core.errors import LosslessError, PeerError, UsageError

if TYPE_CHECKING:
    from paceline.lab.bench.bench import Record
    from paceline.lab.bench.history import History

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, short_help="Measure methods and other systems.")
WHAT = "What is measured"
FORMATS = ("json", "jsonl", "md", "csv")

HistoryFile = Annotated[
    Path | None,
    option(
        "--history",
        panel=OUTPUT,
        metavar="FILE",
        help="Where measurements are kept. Default: your data folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
RunNumber = Annotated[str, typer.Argument(metavar="RUN", help="Its number in `bench list`, or last.")]


@app.callback(invoke_without_command=True, epilog=options.EPILOG)
@takes(models, drafting, sampling)
def bench(
    *,
    context: typer.Context,
    methods: Annotated[
        str | None,
        option(
            "--methods",
            panel=WHAT,
            metavar="NAMES",
            help="plain,lookup,model,lookup+model; settings follow a colon: model:n_draft=12:p_min=0. "
            "Default: all that the models allow.",
        ),
    ] = None,
    suite: Annotated[
        str,
        option(
            "--suite",
            panel=WHAT,
            metavar="NAME",
            help="One or more of `bench suites`, or a file of questions.",
        ),
    ] = "code,edit,json,agent,quote,prose,chat",
    size: Annotated[
        str, option("--size", panel=WHAT, metavar="SIZE", help="tiny or full. Default: what fits the model.")
    ] = "",
    items: Annotated[
        int, option("--items", panel=WHAT, metavar="N", help="Most items of the suite; 0: all.")
    ] = 0,
    rounds: Annotated[
        int, option("-r", "--n", panel=WHAT, metavar="N", help="Times that each item is measured.")
    ] = 5,
    n_predict: Annotated[
        int,
        option("-n", "--n-predict", panel=WHAT, metavar="N", help="Tokens of each answer; 0: the suite's."),
    ] = 0,
    stop_at_eos: Annotated[
        bool, flag("--stop-at-eos", panel=WHAT, help="End an answer where the model does.")
    ] = False,
    seed: Annotated[
        int, option("--seed", panel=WHAT, metavar="N", help="The same seed draws the same texts.")
    ] = 0,
    sweep: Annotated[
        str,
        option(
            "--sweep",
            panel=WHAT,
            metavar="NAME",
            help="k, temp, draft-temp, draft-type, drafter, threads, depth or batch; k=4,8 names the values.",
        ),
    ] = "",
    peer: Annotated[
        list[str] | None,
        option(
            "--peer",
            panel=WHAT,
            metavar="KIND",
            from_environment=False,
            help="Another system beside it: llama-server, llama-speculative, llama-lookup (or =PATH), "
            "transformers, openai=URL; may be repeated.",
        ),
    ] = None,
    models: Any,
    drafting: Any,
    sampling: Any,
    history: HistoryFile = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep nothing.", rich_help_panel=OUTPUT)
    ] = False,
    plot: Annotated[
        Path | None,
        option(
            "--plot", panel=OUTPUT, metavar="FILE", help="A plot as one HTML file.", from_environment=False
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="Everything as one JSON object.")] = False,
    as_jsonl: Annotated[bool, flag("--jsonl", panel=OUTPUT, help="A JSON object a row.")] = False,
    as_md: Annotated[bool, flag("--md", panel=OUTPUT, help="The tables as Markdown.")] = False,
    as_csv: Annotated[bool, flag("--csv", panel=OUTPUT, help="The rows as CSV.")] = False,
) -> int:
    """Measure ways to decode, in turns, on the same requests: plain decoding, drafters, other systems.

    Every method first has to repeat plain output; one that does not shows no speed. The table goes to stdout,
    everything else to stderr. Exit code 3: a method was not lossless.
    """
    if context.invoked_subcommand is not None:
        if any(typed(context, name) for name in context.params):
            raise UsageError(f"give options after `{context.invoked_subcommand}`, not before it")
        return 0
    form = chosen_format({"json": as_json, "jsonl": as_jsonl, "md": as_md, "csv": as_csv})
    if size not in ("", "tiny", "full"):
        raise UsageError(f"--size {size}: choose tiny or full")
    check_plot(plot)

    from paceline.lab.bench.plan import Plan

    exact = drafting.pop("exact_greedy")
    plan = Plan(
        models={n: value for n, value in models.items() if value is not None} | {"exact_greedy": exact},
        drafting=drafting,
        sampling=sampling,
        methods=methods or default_methods(models),
        peers=tuple(peer or ()),
        suite=suite,
        size=size,
        items=items,
        rounds=rounds,
        n=n_predict,
        seed=seed,
        ignore_eos=not stop_at_eos,
        sweep=sweep,
    )
    with ExitStack() as stack:
        kept = None if no_history else stack.enter_context(opened(history))
        return run(plan, kept, None, form, plot)


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was on the command line, and not only in the environment."""
    return str(context.get_parameter_source(name)).endswith("COMMANDLINE")


def check_plot(plot: Path | None) -> None:
    """Before hours of measuring, not after."""
    if plot is None:
        return
    if not plot.parent.is_dir() or plot.is_dir():
        raise UsageError(f"--plot {plot}: name a file in a folder that is there")
    from paceline.report.plot import require_plotly

    require_plotly()


def default_methods(models: Mapping[str, Any]) -> str:
    drafted = models["draft"] is not None or models["target"] is None
    return "plain,lookup,model,lookup+model" if drafted else "plain,lookup"


def chosen_format(asked: Mapping[str, bool]) -> str:
    names = [name for name, is_on in asked.items() if is_on]
    if len(names) > 1:
        raise UsageError(f"{', '.join(f'--{name}' for name in names)}: choose one")
    return names[0] if names else ""


@contextmanager
def opened(file: Path | None) -> Iterator[History]:
    from paceline.lab.bench.history import History, default_path

    with History(file or default_path()) as history:
        yield history


def run(plan: Any, history: History | None, number: int | None, form: str, plot: Path | None) -> int:
    """Measure, print, and say with the exit code how it went."""
    from paceline.cli.progress import progress
    from paceline.lab.bench.bench import Bench

    with Interrupts() as interrupts:

        def watch(work: Mapping[str, int]) -> AbstractContextManager[Any]:
            return progress(work, interrupts)

        record = Bench(plan, history=history, run=number, watch=watch).measure()
    return told(record, form, plot)


def told(record: Record, form: str, plot: Path | None) -> int:
    said = record.as_dict()
    write(said, form)
    for line in record.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if record.lost:
        print(f"not kept to its end: {record.lost}", file=sys.stderr)
    if plot is not None:
        from paceline.report.plot import html

        html(said, plot)
    if record.broken is not None:
        raise record.broken
    if record.status == "interrupted":
        if record.run is not None and not record.lost:
            print(f"interrupted; `paceline bench resume {record.run}` goes on", file=sys.stderr)
        return INTERRUPTED
    no_speed = [r for r in record.results if not r.lossless]
    failed = {f"{r.system}: {r.verdict}" for r in no_speed if r.verdict.startswith("failed")}
    wrong = {r.system for r in no_speed if not r.verdict.startswith("failed")}
    said_of = [f"not lossless: {', '.join(sorted(wrong))}; shown without a speed"] if wrong else []
    if wrong or failed:
        raise (LosslessError if wrong else PeerError)("; ".join([*said_of, *sorted(failed)]))
    return 0


def write(record: Mapping[str, Any], form: str) -> None:
    from paceline.cli.completion import strict
    from paceline.report import bench as tables
    from paceline.report import rows
    from paceline.report.plot import write_bars, write_plot

    if form == "json":
        sys.stdout.write(json.dumps(strict(record), allow_nan=False) + "\n")
    elif form == "jsonl":
        sys.stdout.write("".join(f"{line}\n" for line in rows.jsonl(record)))
    elif form == "csv":
        rows.write_csv(record, sys.stdout)
    elif form == "md":
        sys.stdout.write(tables.markdown(record))
    else:
        tables.write(record, sys.stdout)
        if record["plan"].get("sweep") == "drafter":
            write_bars(record, sys.stdout)
        write_plot(record, sys.stdout)


@app.command(cls=GroupedCommand)
def suites(as_json: AsJson = False) -> None:
    """List the suites that come with the package."""
    from paceline.lab import workload
    from paceline.report.table import listing

    found = workload.suites()
    if as_json:
        typer.echo(json.dumps([vars(one) for one in found]))
        return
    rows = [(one.name, str(one.tiny), str(one.full), one.licence, one.description) for one in found]
    listing(("suite", "tiny", "full", "licence", "what"), rows, sys.stdout)


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
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="A JSON object a row.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="The tables as Markdown.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="The rows as CSV.")] = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="A plot as one HTML file.")
    ] = None,
) -> None:
    """Print a run again."""
    form = chosen_format({"json": as_json, "jsonl": as_jsonl, "md": as_md, "csv": as_csv})
    check_plot(plot)
    with opened(history) as kept:
        record = as_record(found(kept, which))
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
) -> int:
    """Go on with a run that was cut short.

    What it had measured is kept.
    """
    from paceline.lab.bench.plan import Plan

    with opened(history) as kept:
        stored = found(kept, which)
        if stored.status == "done":
            raise UsageError(f"run {stored.id} is complete: `paceline bench show {stored.id}` prints it")
        return run(Plan.read(stored.plan), kept, stored.id, "json" if as_json else "", None)


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
