"""`paceline tune`, `paceline try` and `paceline profile`: find settings for a model here, and keep them."""

from __future__ import annotations

import shlex
import sys
from contextlib import chdir
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, setting_options, with_option_groups
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import OUTPUT, argument, option
from paceline.cli.output import print_json, print_note, print_record
from paceline.cli.references import resolve_models, resolved
from paceline.speculative.errors import UsageError
from paceline.tune.plan import TunePlan

if TYPE_CHECKING:
    from paceline.tune.record import TuneRecord

WHAT = "What is tuned"
MAX_DRAFTS = 3  # that are tried
app = options.command_group("List, show and remove the settings that were found (docs/tune.md).")
TUNE_OPTIONS = OptionGroup([
    *option_table(
        WHAT,
        ("drafts", list[str] | None, None, "-md --model-draft", "MODEL",
         "A draft model or head; may be repeated."),
        ("sweeps", list[str] | None, None, "--sweep", "NAME=A,B",
         "Only measure these values of a setting (n_draft, p_min, draft_temp, threads, ...); k: lengths of "
         "drafts while they pay. May be repeated."),
        env=False,
    ),
    *setting_options(WHAT, TunePlan, "minutes", "task", "suite", "n", "temperature", "seed", "profile",
                     renamed={"n": "-n --n-predict", "temperature": "--temp"}, env=False),
    *option_table(OUTPUT, ("no_save", bool, False, "--no-save", "", "Save no profile.")),
    *option_table(
        OUTPUT,
        ("out", Path | None, None, "-o --out", "FILE", "A new file for the record."),
        ("interrupted", Path | None, None, "--continue", "FILE", "Continue an interrupted tune."),
        env=False,
    ),
])  # fmt: skip
TUNED_MODELS = groups.model_options(
    "target", "n_ctx", "threads", "gpu_layers", "flash_attention", "cache_type", "kernels", "device", "dtype"
)


@with_option_groups(plan=TUNE_OPTIONS, models=TUNED_MODELS, drafting=groups.DRAFTING_OPTIONS)
def tune(
    *,
    context: typer.Context,
    plan: Any,
    models: Any,
    drafters: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    as_json: options.AsJson = False,
) -> int:
    """Find the fastest settings for a model on this machine, and save them as a profile.

    Candidates answer the same prompts in turns with plain decoding; one that changes the output is out. The
    best is compared with the defaults on other prompts, and saved only if it is faster there."""
    out, interrupted, no_save = plan.pop("out"), plan.pop("interrupted"), plan.pop("no_save")
    if interrupted is not None:
        options.require_continue_alone(context)
        return _continue(interrupted, as_json)
    from paceline.tune.record import new_path

    drafting.pop("exact_greedy")
    if out is not None:
        from paceline.bench.run_file import require_new

        require_new(out)
    chosen = groups.with_drafting(models, drafters, drafting).drafting
    loading = replace(resolve_models(models), corpora=tuple(corpora or ()))
    drafts = tuple(str(resolved(name)) for name in plan["drafts"] or ())
    plan |= {"drafts": drafts, "sweeps": tuple(plan["sweeps"] or ()), "save": not no_save}
    plan["drafters"] = chosen.drafters if drafters else ()
    tune_plan = TunePlan(models=loading, drafting=chosen.explicit_settings, **plan)
    return _run(tune_plan, as_json, file=out or new_path())


def _continue(file: Path, as_json: bool) -> int:
    from paceline.tune.record import read

    stored = read(file.absolute())
    if stored.conclusion.get("status") == "done":
        raise UsageError(f"{file}: is complete: there is nothing left to measure")
    try:
        plan = TunePlan.read(stored.plan)
        with chdir(stored.folder):
            return _run(plan, as_json, stored=stored)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{file}: is no record of `paceline tune` ({error})") from error
    except FileNotFoundError as error:
        raise UsageError(f"{file}: was begun in {stored.folder} ({error.strerror})") from error


def _run(plan: TunePlan, as_json: bool, **more: Any) -> int:
    """Tune, print, and return the exit code. more: arguments of `Tuning`."""
    from paceline.report import tune as report

    record = measure(plan, **more)
    print_record(record.as_dict(), as_json, report.write)
    if not as_json and record.path is not None:
        print_note(f"`paceline report {shlex.quote(str(record.path))} -o report.html` shows it on a page")
    return INTERRUPTED if record.conclusion.get("status") == "interrupted" else 0


def measure(plan: TunePlan, **more: Any) -> TuneRecord:
    from paceline.cli.progress import progress
    from paceline.tune.tuning import Tuning

    with Interrupts() as interrupts:
        tuning = Tuning(plan, watch=partial(progress, interrupts=interrupts), **more)
        try:
            record = tuning.run()
            for line in tuning.skipped:
                print_note(f"skipped: {line}")
            return record
        except BaseException:
            if tuning.record.provenance and tuning.record.path is not None:
                print_note(f"`paceline tune --continue {shlex.quote(str(tuning.record.path))}` goes on")
            raise


PULL = ("pull", bool, False, "--pull", "", "Download a known draft if none is here, without asking.")
TRY_OPTIONS = OptionGroup(
    [*setting_options(WHAT, TunePlan, "minutes", "task", env=False), *option_table(WHAT, PULL)]
)


@with_option_groups(request=TRY_OPTIONS)
def try_(
    *, model: Annotated[str, argument("MODEL", "The model to be made faster, as for -m.")], request: Any,
    as_json: options.AsJson = False,
) -> int:  # fmt: skip
    """Find the drafts for a model, measure for some minutes, and save what is fastest.

    Says in three lines what `-m MODEL` does from now on. Drafts are looked for on this machine; a known one
    is offered for download."""
    from paceline.report.tune import write_conclusion
    from paceline.settings import LoadOptions
    from paceline.tune.record import new_path

    pull = request.pop("pull")
    target, drafts = resolved(model), _drafts_for(model, pull=pull)
    print_note(f"drafts for {model}: {', '.join(drafts) or 'none here; copies from the text are tried'}")
    paths = tuple(str(resolved(draft)) for draft in drafts)
    record = measure(TunePlan(models=LoadOptions.of(target), drafts=paths, **request), file=new_path())
    print_record(record.as_dict(), as_json, write_conclusion)
    return INTERRUPTED if record.conclusion["status"] == "interrupted" else 0


def _drafts_for(model: str, *, pull: bool) -> list[str]:
    """Return the names of the best drafts and heads for a target that are here, or one that is pulled."""
    from paceline.cli import pairs
    from paceline.cli.models import downloaded
    from paceline.doctor.drafts import MODEL, AdviceRequest
    from paceline.models import zoo
    from paceline.models.compatibility.check import MAPPABLE
    from paceline.models.compatibility.known_pairs import DRAFT_MODEL
    from paceline.models.headers.header import read_model_facts
    from paceline.models.stores.inventory import list_models
    from paceline.models.stores.reference import parse
    from paceline.settings import EngineOptions

    facts = read_model_facts(resolved(model))
    inventory = list_models([], own=zoo.installed_real_models())
    candidates = pairs.draft_candidates(facts, inventory, print_note)
    with Interrupts() as interrupts:
        known = (AdviceRequest(), EngineOptions(), 0, print_note, interrupts)
        advice = pairs.rank_drafts(facts, candidates, *known)
    heads = pairs.heads_for(resolved(model), facts, inventory)
    found = [
        row["reference"] for row in advice["drafts"]
        if row["drafter"] == MODEL and row["fits"] and row["verdict"] != MAPPABLE
    ]  # fmt: skip
    downloads = [row for row in advice["downloads"] if row["kind"] == DRAFT_MODEL]
    if found or heads or not downloads:
        return [*found, *heads][:MAX_DRAFTS]
    draft = downloads[0]
    offer = f"{draft['reference']} is a draft for it ({draft['why']}): download it?"
    if not pull and not (sys.stdin.isatty() and typer.confirm(offer, err=True)):
        print_note(f"`paceline pull {draft['reference']}` would get a draft for it: {draft['why']}")
        return []
    downloaded(parse(draft["reference"]), offline=False)
    return [draft["reference"]]


def _profiles() -> list[dict[str, Any]]:
    from paceline.plan import machine
    from paceline.storage import profiles

    here = machine()
    return [
        asdict(one) | {"here": one.machine == here, "file": str(one.path), "command": one.command}
        for one in profiles.every(print_note)
    ]


Name = Annotated[str, argument("NAME", "The profile; `paceline profile list` has the names.")]
Model = Annotated[str | None, option(WHAT, "-m --model", "MODEL", "Only that of this model.")]


@app.command("list", cls=GroupedCommand)
def list_profiles(*, as_json: options.AsJson = False) -> int:
    """List the profiles, with the model and the settings."""
    from paceline.report.tune import write_profiles

    found = _profiles()
    if as_json:
        print_json({"profiles": found})
    elif found:
        write_profiles(found, sys.stdout)
    else:
        print_note("there are no profiles; `paceline tune -m MODEL` makes one")
    return 0


@app.command("show", cls=GroupedCommand)
def show(*, name: Name, model: Model = None) -> int:
    """Print a profile's file. It may be edited: fields of `settings` are keywords of `paceline.load`."""
    for one in _profiles_named(name, model):
        print_note(one["file"])
        sys.stdout.write(Path(one["file"]).read_text("utf-8"))
    return 0


@app.command("rm", cls=GroupedCommand)
def remove(*, name: Name, model: Model = None) -> int:
    """Remove a profile of this machine."""
    for one in _profiles_named(name, model):
        Path(one["file"]).unlink()
        print_note(f"{one['file']}: removed")
    return 0


def _profiles_named(name: str, model: str | None) -> list[dict[str, Any]]:
    """Return the profiles of this name on this machine. Raises UsageError if there is none."""
    found = [one for one in _profiles() if one["name"] == name and one["here"]]
    if model is not None:
        from paceline.plan import target_fingerprint
        from paceline.settings import LoadOptions

        fingerprint = target_fingerprint(LoadOptions(resolved(model)))
        found = [one for one in found if one["target"]["fingerprint"] == fingerprint]
    if not found:
        raise UsageError(f"no profile {name!r} here: `paceline profile list` lists them")
    return found
