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

from paceline.cli import options, recording
from paceline.cli.exits import INTERRUPTED
from paceline.cli.groups import drafting, models, sampling, takes
from paceline.cli.help import GroupedCommand, GroupedGroup
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, flag, option
from paceline.core.errors import LosslessError, PeerError, UsageError

if TYPE_CHECKING:
    from paceline.lab.bench.history import History
    from paceline.lab.bench.outcome import Record
    from paceline.lab.replay.recording import Recorder

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, short_help="Measure methods and other systems.")
WHAT = "What is measured"
MINUTES = 5.0
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
            help="plain,lookup,suffix,lookup+model; settings follow a colon: model:n_draft=12:p_min=0. "
            "Default: plain,auto,lookup and, with a draft model, model; with --full all of them.",
        ),
    ] = None,
    suite: Annotated[
        str,
        option(
            "--suite",
            panel=WHAT,
            metavar="NAME",
            help="One or more of `bench suites`, or a file: FILE.jsonl, specbench:FILE, sessions:FILE. "
            "Default: real for a model with a chat template, else toy.",
        ),
    ] = "",
    size: Annotated[
        str, option("--size", panel=WHAT, metavar="SIZE", help="tiny or full. Default: what fits the model.")
    ] = "",
    minutes: Annotated[
        float,
        option(
            "--minutes",
            panel=WHAT,
            metavar="N",
            help="Take as many items as fit into about N minutes; 0: all.",
        ),
    ] = MINUTES,
    full: Annotated[
        bool, flag("--full", panel=WHAT, help="All items and methods, 5 rounds, each prompt read each time.")
    ] = False,
    items: Annotated[
        int,
        option("--items", panel=WHAT, metavar="N", help="So many items, however long it takes; 0: by time."),
    ] = 0,
    rounds: Annotated[
        int | None,
        option(
            "-r",
            "--rounds",
            panel=WHAT,
            metavar="N",
            help="Times that each item is measured. Default: 1; with --full 5.",
        ),
    ] = None,
    n_predict: Annotated[
        int,
        option("-n", "--n-predict", panel=WHAT, metavar="N", help="Tokens of each answer; 0: the suite's."),
    ] = 0,
    stop_at_eos: Annotated[
        bool, flag("--stop-at-eos", panel=WHAT, help="End an answer where the model does.")
    ] = False,
    keep_prompts: Annotated[
        bool | None,
        flag(
            "--keep-prompts",
            panel=WHAT,
            help="Read a prompt once for all methods: quicker, and without a time to the first token. "
            "Default: yes, but with --full, --rounds or --peer.",
        ),
    ] = None,
    seed: Annotated[
        int, option("--seed", panel=WHAT, metavar="N", help="The same seed draws the same texts.")
    ] = 0,
    peer: Annotated[
        list[str] | None,
        option(
            "--peer",
            panel=WHAT,
            metavar="KIND",
            from_environment=False,
            help="Another system beside it: llama-server (or =PATH), transformers, openai=URL; "
            "may be repeated.",
        ),
    ] = None,
    models: Any,
    drafting: Any,
    corpus: options.Corpora = None,
    sampling: Any,
    history: HistoryFile = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep nothing.", rich_help_panel=OUTPUT)
    ] = False,
    record: recording.Record = None,
    record_top_k: recording.RecordTopK = 0,
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="Everything as one JSON object.")] = False,
    as_md: Annotated[bool, flag("--md", panel=OUTPUT, help="The tables as Markdown.")] = False,
) -> int:
    """Measure ways to decode, in turns, on the same requests: plain decoding, drafters, other systems.

    By default it ends in about five minutes: it takes as many items as fit in, and --full takes all.

    Every method first has to repeat plain output; one that does not shows no speed. The table goes to stdout,
    everything else to stderr. Exit code 3: a method was not lossless.
    """
    if context.invoked_subcommand is not None:
        if any(typed(context, name) for name in context.params):
            raise UsageError(f"give options after `{context.invoked_subcommand}`, not before it")
        return 0
    form = chosen_format({"json": as_json, "md": as_md})
    if size not in ("", "tiny", "full"):
        raise UsageError(f"--size {size}: choose tiny or full")
    recorder = recording.recorder(record, record_top_k)

    from paceline.lab.bench.plan import FULL_ROUNDS, Plan

    exact = drafting.pop("exact_greedy")
    given = {name: value for name, value in models.items() if value is not None}
    plan = Plan(
        models=given | {"exact_greedy": exact} | ({"corpora": list(corpus)} if corpus else {}),
        drafting=drafting,
        sampling=sampling,
        methods=methods or default_methods(models, full=full),
        peers=tuple(peer or ()),
        suite=suite,
        size=size,
        items=items,
        rounds=rounds if rounds is not None else FULL_ROUNDS if full else 1,
        minutes=0 if full or items else minutes,
        n=n_predict,
        seed=seed,
        ignore_eos=not stop_at_eos,
        keep_prompts=not (full or peer or rounds is not None) if keep_prompts is None else keep_prompts,
    )
    with ExitStack() as stack:
        kept = None if no_history else stack.enter_context(opened(history))
        return run(plan, kept, None, form, recorder)


def typed(context: typer.Context, name: str) -> bool:
    """Whether an option was on the command line, and not only in the environment."""
    return str(context.get_parameter_source(name)).endswith("COMMANDLINE")


def default_methods(models: Mapping[str, Any], *, full: bool) -> str:
    drafted = models["draft"] is not None or models["target"] is None
    if not full:
        return "plain,auto,lookup" + ",model" * drafted
    return "plain,auto,lookup,suffix,ngram" + ",model,lookup+model" * drafted


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


def run(
    plan: Any, history: History | None, number: int | None, form: str, recorder: Recorder | None = None
) -> int:
    """Measure, print, and say with the exit code how it went."""
    from paceline.cli.progress import progress
    from paceline.lab.bench.bench import Bench

    with Interrupts() as interrupts:

        def watch(work: Mapping[str, int]) -> AbstractContextManager[Any]:
            return progress(work, interrupts)

        record = Bench(plan, history=history, run=number, watch=watch, recorder=recorder).measure()
    return told(record, form)


def told(record: Record, form: str) -> int:
    write(record.as_dict(), form)
    for line in record.skipped:
        print(f"skipped: {line}", file=sys.stderr)
    if record.lost:
        print(f"not kept to its end: {record.lost}", file=sys.stderr)
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

    if form == "json":
        sys.stdout.write(json.dumps(strict(record), allow_nan=False) + "\n")
    elif form == "md":
        sys.stdout.write(tables.markdown(record))
    else:
        tables.write(record, sys.stdout)


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
