"""`paceline bench`: measure methods and other systems on the same requests, and continue interrupted runs."""

from __future__ import annotations

import shlex
from contextlib import ExitStack, chdir
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.bench.plan import FULL_ROUNDS, BenchPlan
from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, setting_options, with_option_groups
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import OUTPUT
from paceline.cli.output import print_note, print_record
from paceline.cli.references import resolve_models
from paceline.settings import LoadOptions
from paceline.speculative.errors import BaselineError, NotLosslessError, UsageError
from paceline.speculative.validation import settings_of

if TYPE_CHECKING:
    from paceline.bench.run_file import Run

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
    ("keep_prompts", bool | None, None, "--keep-prompts", "",
     "Read prompts once for all methods. Default: yes, but with --full, --rounds or --baseline."),
), *setting_options(WHAT, BenchPlan, "suite", "size", "items", "n", "seed", renamed=RENAMED), *option_table(
    WHAT,
    ("baselines", list[str] | None, None, "--baseline", "KIND",
     "Another system: llama-server, llama-speculative, llama-speculative-simple, llama-lookup, "
     "transformers, openvino-genai or openai=URL. Programs as NAME=PATH; may be repeated."),
    env=False,
), *option_table(
    OUTPUT,
    ("out", Path | None, None, "-o --out", "FILE", "A new file for the run. Default: in Paceline's folder."),
    ("interrupted", Path | None, None, "--continue", "FILE", "Continue the interrupted run in this file."),
    env=False,
)])  # fmt: skip


@with_option_groups(
    plan=PLAN_OPTIONS,
    models=groups.MODEL_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    sampling=groups.SAMPLING_OPTIONS,
    recorder=groups.RECORD_OPTIONS,
)
def bench(
    *,
    context: typer.Context,
    plan: Any,
    models: Any,
    drafting: Any,
    corpora: options.Corpora = None,
    sampling: Any,
    recorder: Any,
    as_json: options.AsJson = False,
) -> int:
    """Measure ways to decode, in turns, on the same requests: plain decoding, drafters, other systems.

    By default it takes as many items as fit into five minutes; --full takes all.

    Every method must first repeat plain output; a method that does not shows no speed. The table goes to
    stdout, everything else to stderr. Exit code 3: a method was not lossless."""
    out, interrupted = plan.pop("out"), plan.pop("interrupted")
    if interrupted is not None:
        options.require_continue_alone(context)
        return _continue(interrupted, as_json)

    engine = replace(models.engine, exact_greedy=drafting.pop("exact_greedy"))
    loading = replace(resolve_models(models), engine=engine, corpora=tuple(corpora or ()))
    full, rounds, baselines = plan.pop("full"), plan["rounds"], tuple(plan["baselines"] or ())
    plan |= {
        "baselines": baselines,
        "methods": plan["methods"] or default_methods(loading, full=full),
        "minutes": 0 if full or plan["items"] else plan["minutes"],
        "rounds": rounds if rounds is not None else FULL_ROUNDS if full else 1,
    }
    if plan["keep_prompts"] is None:
        plan["keep_prompts"] = not (full or baselines or rounds is not None)
    bench_plan = BenchPlan(models=loading, drafting=drafting, sampling=sampling, **plan)
    from paceline.bench.run_file import new_path

    return _run(bench_plan, as_json, file=out or new_path(), recorder=recorder)


def default_methods(models: LoadOptions, *, full: bool) -> str:
    """Return the methods: with the draft that is given, or the target's own layers (MTP)."""
    from paceline.drafts import header_traits, kind_of
    from paceline.fits import USABLE, drafters_of

    drafter = "model" if models.target is None else ""
    if models.draft is not None:
        drafter = drafters_of(kind_of(Path(models.draft)))[0]
    elif models.target is not None and header_traits(Path(models.target)).mtp == USABLE:
        drafter = "mtp"
    methods = "plain,auto,lookup,suffix,ngram" if full else "plain,auto,lookup"
    return methods + f",{drafter}" * bool(drafter) + f",lookup+{drafter}" * bool(drafter and full)


def _continue(file: Path, as_json: bool) -> int:
    from paceline.bench.run_file import read

    stored = read(file.absolute())
    if stored.status == "done":
        raise UsageError(f"{file}: is complete: there is nothing left to measure")
    with ExitStack() as there:
        try:
            plan = BenchPlan.read(stored.plan)
            there.enter_context(chdir(stored.folder))
        except (KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{file}: is no run of `paceline bench` ({error})") from error
        except OSError as error:
            raise UsageError(f"{file}: was begun in {stored.folder} ({error.strerror})") from error
        return _run(plan, as_json, stored=stored)


def _run(plan: BenchPlan, as_json: bool, **more: Any) -> int:
    """Measure, print, and return the exit code. more: arguments of `Bench`."""
    from paceline.bench.bench import Bench
    from paceline.cli.progress import progress
    from paceline.report.bench import write

    with Interrupts() as interrupts:
        watch = partial(progress, interrupts=interrupts)
        bench = Bench(plan, watch=watch, **more)
        try:
            run = bench.measure()
        except BaseException:
            if bench.run.path is not None:
                print_note(f"`paceline bench --continue {shlex.quote(str(bench.run.path))}` goes on")
            raise
    print_record(run.as_dict(), as_json, write)
    if run.path is not None and run.status == "done" and not as_json:
        print_note(f"as a page: paceline report {shlex.quote(str(run.path))} -o report.html")
    return outcome(run)


def outcome(run: Run) -> int:
    """Return the exit code of a bench. Raises NotLosslessError and BaselineError."""
    for line in run.skipped:
        print_note(f"skipped: {line}")
    if run.lost:
        print_note(f"{run.path}: is incomplete ({run.lost})")
    if run.status == "interrupted":
        if run.path is not None and not run.lost:
            print_note(f"interrupted; `paceline bench --continue {shlex.quote(str(run.path))}` goes on")
        return INTERRUPTED
    no_speed = [r for r in run.results if not r["lossless"]]
    failed = {f"{r['system']}: {r['verdict']}" for r in no_speed if r["verdict"].startswith("failed")}
    wrong = {r["system"] for r in no_speed if not r["verdict"].startswith("failed")}
    if wrong:
        message = f"not lossless: {', '.join(sorted(wrong))}; shown without a speed"
        raise NotLosslessError("; ".join([message, *sorted(failed)]))
    if failed:
        raise BaselineError("; ".join(sorted(failed)))
    return 0
