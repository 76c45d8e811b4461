"""`paceline bench`: every method and every other system measured the same way, and what was measured
before."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli import options
from paceline.cli.groups import (
    DRAFTING_OPTIONS,
    MODEL_OPTIONS,
    RECORD_OPTIONS,
    SAMPLING_OPTIONS,
    with_option_groups,
)
from paceline.cli.help import GroupedCommand, GroupedGroup
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import OUTPUT, argument, flag, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import resolve_models
from paceline.speculative.errors import LosslessError, PeerError, UsageError

if TYPE_CHECKING:
    from paceline.bench.history import History
    from paceline.bench.record import BenchRecord
    from paceline.bench.replay.recording import Recorder

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, short_help="Measure methods and other systems.")
WHAT = "What is measured"

RunNumber = Annotated[str, argument("RUN", "Its number in `bench list`, or last.")]


@app.callback(invoke_without_command=True, epilog=options.EPILOG)
@with_option_groups(
    models=MODEL_OPTIONS, drafting=DRAFTING_OPTIONS, sampling=SAMPLING_OPTIONS, recorder=RECORD_OPTIONS
)
def bench(
    *,
    context: typer.Context,
    methods: Annotated[
        str | None,
        option(
            WHAT,
            "--methods",
            "NAMES",
            "plain,lookup,suffix,lookup+model; settings follow a colon: model:n_draft=12:p_min=0. "
            "Default: plain,auto,lookup and, with a draft model, model; with --full all of them.",
        ),
    ] = None,
    suite: Annotated[
        str,
        option(
            WHAT,
            "--suite",
            "NAME",
            "One or more of `bench suites`, or a file: FILE.jsonl, specbench:FILE, sessions:FILE. "
            "Default: real for a model with a chat template, else toy.",
        ),
    ] = "",
    size: Annotated[
        Literal["tiny", "full"] | None,
        option(WHAT, "--size", "SIZE", "tiny or full. Default: what fits the model."),
    ] = None,
    minutes: Annotated[
        float, option(WHAT, "--minutes", "N", "Take as many items as fit into about N minutes; 0: all.")
    ] = 5.0,
    full: Annotated[
        bool, flag(WHAT, "--full", "All items and methods, 5 rounds, each prompt read each time.")
    ] = False,
    items: Annotated[
        int, option(WHAT, "--items", "N", "So many items, however long it takes; 0: by time.")
    ] = 0,
    rounds: Annotated[
        int | None,
        option(WHAT, "-r --rounds", "N", "Times that each item is measured. Default: 1; with --full 5."),
    ] = None,
    n_predict: Annotated[
        int, option(WHAT, "-n --n-predict", "N", "Tokens of each answer; 0: the suite's.")
    ] = 0,
    stop_at_eos: Annotated[bool, flag(WHAT, "--stop-at-eos", "End an answer where the model does.")] = False,
    keep_prompts: Annotated[
        bool | None,
        flag(
            WHAT,
            "--keep-prompts",
            "Read a prompt once for all methods: quicker, and without a time to the first token. "
            "Default: yes, but with --full, --rounds or --peer.",
        ),
    ] = None,
    seed: Annotated[int, option(WHAT, "--seed", "N", "The same seed draws the same texts.")] = 0,
    peer: Annotated[
        list[str] | None,
        option(
            WHAT,
            "--peer",
            "KIND",
            "Another system beside it: llama-server (or =PATH), transformers, openai=URL; may be repeated.",
            env=False,
        ),
    ] = None,
    models: Any,
    drafting: Any,
    corpora: options.Corpora = None,
    sampling: Any,
    history: options.HistoryFile = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep nothing.", rich_help_panel=OUTPUT)
    ] = False,
    recorder: Any,
    as_json: options.AsJson = False,
) -> int:
    """Measure ways to decode, in turns, on the same requests: plain decoding, drafters, other systems.

    By default it ends in about five minutes: it takes as many items as fit in, and --full takes all.

    Every method first has to repeat plain output; one that does not shows no speed. The table goes to stdout,
    everything else to stderr. Exit code 3: a method was not lossless.
    """
    if context.invoked_subcommand is not None:
        # Not those that are given in the environment only.
        sources = (str(context.get_parameter_source(name)) for name in context.params)
        if any(source.endswith("COMMANDLINE") for source in sources):
            raise UsageError(f"give options after `{context.invoked_subcommand}`, not before it")
        return 0

    from paceline.bench.plan import FULL_ROUNDS, BenchPlan

    exact = drafting.pop("exact_greedy")
    given = {name: value for name, value in resolve_models(models).items() if value is not None}
    plan = BenchPlan(
        models=given | {"exact_greedy": exact} | ({"corpora": list(corpora)} if corpora else {}),
        drafting=drafting,
        sampling=sampling,
        methods=methods or default_methods(models, full=full),
        peers=tuple(peer or ()),
        suite=suite,
        size=size or "",
        items=items,
        rounds=rounds if rounds is not None else FULL_ROUNDS if full else 1,
        minutes=0 if full or items else minutes,
        n=n_predict,
        seed=seed,
        ignore_eos=not stop_at_eos,
        keep_prompts=not (full or peer or rounds is not None) if keep_prompts is None else keep_prompts,
    )
    return _run(plan, None if no_history else _opened(history), None, as_json, recorder)


def default_methods(models: Mapping[str, Any], *, full: bool) -> str:
    drafted = models["draft"] is not None or models["target"] is None
    if not full:
        return "plain,auto,lookup" + ",model" * drafted
    return "plain,auto,lookup,suffix,ngram" + ",model,lookup+model" * drafted


def _opened(file: Path | None) -> History:
    from paceline.bench.history import History, default_path

    return History(file or default_path())


def _run(
    plan: Any,
    history: History | None,
    number: int | None,
    as_json: bool,
    recorder: Recorder | None = None,
) -> int:
    """Measure, print, and return the exit code."""
    from paceline.bench.bench import Bench
    from paceline.cli.progress import progress

    with Interrupts() as interrupts:

        def watch(work: Mapping[str, int]) -> AbstractContextManager[Any]:
            return progress(work, interrupts)

        record = Bench(plan, history=history, run=number, watch=watch, recorder=recorder).measure()
    _write(record.as_dict(), as_json)
    return outcome(record)


def outcome(record: BenchRecord) -> int:
    """Return the exit code of what was measured. Raises LosslessError and PeerError."""
    for line in record.skipped:
        print_note(f"skipped: {line}")
    if record.lost:
        print_note(f"not kept to its end: {record.lost}")
    if record.status == "interrupted":
        if record.run is not None and not record.lost:
            print_note(f"interrupted; `paceline bench resume {record.run}` goes on")
        return INTERRUPTED
    no_speed = [r for r in record.results if not r.lossless]
    failed = {f"{r.system}: {r.verdict}" for r in no_speed if r.verdict.startswith("failed")}
    wrong = {r.system for r in no_speed if not r.verdict.startswith("failed")}
    what = [f"not lossless: {', '.join(sorted(wrong))}; shown without a speed"] if wrong else []
    if wrong or failed:
        raise (LosslessError if wrong else PeerError)("; ".join([*what, *sorted(failed)]))
    return 0


def _write(record: Mapping[str, Any], as_json: bool) -> None:
    from paceline.report.bench import write

    if as_json:
        print_json(record)
    else:
        write(record, sys.stdout)


@app.command(cls=GroupedCommand)
def suites(as_json: options.AsJson = False) -> None:
    """List the suites that come with the package."""
    from paceline.bench.suites import workload
    from paceline.report.table import write_table

    found = workload.suites()
    if as_json:
        print_json(found)
        return
    keys = ("name", "tiny", "full", "licence", "description")
    rows = [tuple(str(one[key]) for key in keys) for one in found]
    write_table(("suite", "tiny", "full", "licence", "what"), rows, sys.stdout)


@app.command("list", cls=GroupedCommand)
def list_runs(
    history: options.HistoryFile = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Most runs, the newest first.")] = 20,
    as_json: options.AsJson = False,
) -> None:
    """List what was measured before."""
    from paceline.report.bench import write_runs

    runs = [_as_record(one) for one in _opened(history).runs(limit)]
    if as_json:
        print_json(runs)
    else:
        write_runs(runs, sys.stdout)


def _as_record(run: Any) -> dict[str, Any]:
    return {**vars(run), "run": run.id, "results": list(run.results)}


def _stored(history: History, text: str) -> Any:
    """Return a run by its number, or the last."""
    if text != "last" and not text.isdecimal():
        raise UsageError(f"run {text!r}: give its number (`paceline bench list`), or last")
    return history.run("last" if text == "last" else int(text))


@app.command(cls=GroupedCommand)
def show(
    which: RunNumber = "last", history: options.HistoryFile = None, as_json: options.AsJson = False
) -> None:
    """Print a run again."""
    _write(_as_record(_stored(_opened(history), which)), as_json)


@app.command(cls=GroupedCommand)
def resume(
    which: RunNumber = "last", history: options.HistoryFile = None, as_json: options.AsJson = False
) -> int:
    """Go on with a run that was cut short.

    What it had measured is kept.
    """
    from paceline.bench.plan import BenchPlan

    cached = _opened(history)
    stored = _stored(cached, which)
    if stored.status == "done":
        raise UsageError(f"run {stored.id} is complete: `paceline bench show {stored.id}` prints it")
    return _run(BenchPlan.read(stored.plan), cached, stored.id, as_json)
