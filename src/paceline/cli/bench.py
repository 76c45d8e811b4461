"""`paceline bench`: measure methods and other systems on the same requests, and continue interrupted runs."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.bench.plan import FULL_ROUNDS, BenchPlan
from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, setting_options, with_option_groups
from paceline.cli.help import GroupedCommand, GroupedGroup
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import OUTPUT, argument
from paceline.cli.output import print_json, print_note, print_record
from paceline.cli.references import resolve_models
from paceline.settings import LoadOptions
from paceline.speculative.errors import NotLosslessError, PeerError, UsageError
from paceline.speculative.validation import settings_of

if TYPE_CHECKING:
    from paceline.bench.bench import BenchRecord
    from paceline.bench.history import History
    from paceline.bench.replay.recording import Recorder

app = typer.Typer(cls=GroupedGroup, rich_markup_mode=None, short_help="Measure methods and other systems.")
WHAT = "What is measured"

RENAMED = {"n": "-n --n-predict"}
SETTINGS = settings_of(BenchPlan)
PLAN_OPTIONS = OptionGroup([*option_table(
    WHAT,
    ("methods", str | None, None, "--methods", "NAMES",
     "Methods: plain,lookup,suffix,lookup+model. Settings follow a colon: model:n_draft=12:policy=fixed. "
     "Default: plain,auto,lookup and, with a draft model, model; with --full all of them."),
    ("minutes", float, 5.0, "--minutes", "N", SETTINGS["minutes"].help),
    ("full", bool, False, "--full", "", "All items and methods, 5 rounds. Prompts are read each time."),
    ("rounds", int | None, None, "-r --rounds", "N", SETTINGS["rounds"].help),
    ("stop_at_eos", bool, False, "--stop-at-eos", "", "End an answer where the model does."),
    ("keep_prompts", bool | None, None, "--keep-prompts", "",
     "Read prompts once for all methods. Default: yes, but with --full, --rounds or --peer."),
), *setting_options(WHAT, BenchPlan, "suite", "size", "items", "n", "seed", renamed=RENAMED)])  # fmt: skip
PEER_OPTIONS = OptionGroup(option_table(
    WHAT,
    ("peer", list[str] | None, None, "--peer", "KIND",
     "Another system: llama-server, transformers, openai=URL. llama-server=PATH; may be repeated."),
    env=False,
))  # fmt: skip


@app.callback(invoke_without_command=True, epilog=options.EPILOG)
@with_option_groups(
    plan=PLAN_OPTIONS,
    peers=PEER_OPTIONS,
    models=groups.MODEL_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    sampling=groups.SAMPLING_OPTIONS,
    recorder=groups.RECORD_OPTIONS,
)
def bench(
    *,
    context: typer.Context,
    plan: Any,
    peers: Any,
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

    By default it takes as many items as fit into five minutes; --full takes all.

    Every method must first repeat plain output; a method that does not shows no speed. The table goes to
    stdout, everything else to stderr. Exit code 3: a method was not lossless."""
    if context.invoked_subcommand is not None:
        # Options that come from the environment are no error.
        sources = (str(context.get_parameter_source(name)) for name in context.params)
        if any(source.endswith("COMMANDLINE") for source in sources):
            raise UsageError(f"give options after `{context.invoked_subcommand}`, not before it")
        return 0

    engine = replace(models.engine, exact_greedy=drafting.pop("exact_greedy"))
    loading = replace(resolve_models(models), engine=engine, corpora=tuple(corpora or ()))
    full, rounds, peers = plan.pop("full"), plan["rounds"], tuple(peers["peer"] or ())
    plan |= {
        "methods": plan["methods"] or default_methods(models, full=full),
        "minutes": 0 if full or plan["items"] else plan["minutes"],
        "rounds": rounds if rounds is not None else FULL_ROUNDS if full else 1,
        "ignore_eos": not plan.pop("stop_at_eos"),
    }
    if plan["keep_prompts"] is None:
        plan["keep_prompts"] = not (full or peers or rounds is not None)
    return _run(
        BenchPlan(models=loading, drafting=drafting, sampling=sampling, peers=peers, **plan),
        None if no_history else _open_history(history),
        None,
        as_json,
        recorder,
    )


def default_methods(models: LoadOptions, *, full: bool) -> str:
    drafted = models.draft is not None or models.target is None
    if not full:
        return "plain,auto,lookup" + ",model" * drafted
    return "plain,auto,lookup,suffix,ngram" + ",model,lookup+model" * drafted


def _open_history(file: Path | None) -> History:
    from paceline.bench.history import History, default_path

    return History(file or default_path())


def _run(
    plan: Any, history: History | None, number: int | None, as_json: bool, recorder: Recorder | None = None
) -> int:
    """Measure, print, and return the exit code."""
    from paceline.bench.bench import Bench
    from paceline.cli.progress import progress
    from paceline.report.bench import write

    with Interrupts() as interrupts:
        watch = partial(progress, interrupts=interrupts)
        record = Bench(plan, history=history, run=number, watch=watch, recorder=recorder).measure()
    print_record(record.as_dict(), as_json, write)
    return outcome(record)


def outcome(record: BenchRecord) -> int:
    """Return the exit code of a bench. Raises NotLosslessError and PeerError."""
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
    if wrong:
        message = f"not lossless: {', '.join(sorted(wrong))}; shown without a speed"
        raise NotLosslessError("; ".join([message, *sorted(failed)]))
    if failed:
        raise PeerError("; ".join(sorted(failed)))
    return 0


@app.command("suites", cls=GroupedCommand)
def list_suites(as_json: options.AsJson = False) -> None:
    """List the suites that come with the package."""
    from paceline.bench.suites import workload
    from paceline.report.table import write_table

    suites = workload.suites()
    if as_json:
        print_json(suites)
        return
    keys = ("name", "tiny", "full", "licence", "description")
    rows = [tuple(str(suite[key]) for key in keys) for suite in suites]
    write_table(("suite", "tiny", "full", "licence", "what"), rows, sys.stdout)


@app.command(cls=GroupedCommand)
def resume(
    which: Annotated[str, argument("RUN", "Its number, as the interrupted bench gave it, or last.")] = "last",
    history: options.HistoryFile = None,
    as_json: options.AsJson = False,
) -> int:
    """Go on with an interrupted run; its measurements are kept."""
    runs = _open_history(history)
    stored = runs.run(which)
    if stored["status"] == "done":
        raise UsageError(f"run {stored['id']} is complete: there is nothing left to measure")
    return _run(BenchPlan.read(stored["plan"]), runs, stored["id"], as_json)
