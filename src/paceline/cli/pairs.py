"""`paceline pairs` and `paceline check`: the models that are here, and which of them draft for a target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import options
from paceline.cli.groups import LLAMA_OPTIONS, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import argument, flag, option
from paceline.cli.output import print_json, print_note
from paceline.speculative.errors import ModelError, UsageError

if TYPE_CHECKING:
    from paceline.doctor.draft_advice.row import AdviceRequest, DraftAdvice, DraftCandidate, Measured
    from paceline.models.headers.facts import ModelFacts
    from paceline.models.stores.inventory import Inventory

ADVICE = "Advice"
MEASURED_DRAFTS = 3  # that --measure loads: the best ones by what is known without
MAX_CONTEXT = 4096  # where none is asked for, as in `load`

Note = Callable[[str], object]


@with_option_groups(setup=LLAMA_OPTIONS)
def pairs(
    *,
    target: Annotated[
        str | None, argument("TARGET", "The model to be made faster, as for -m. Without it: all models here.")
    ] = None,
    task: Annotated[
        str,
        option(
            ADVICE,
            "--task",
            "TASK",
            "What for: code, edit, json, agent, math, summary, chat, quote, prose or any.",
        ),
    ] = "any",
    folders: Annotated[
        list[Path] | None,
        option(ADVICE, "--folder", "DIR", "Look for models here too; may be repeated.", env=False),
    ] = None,
    measure: Annotated[
        bool, flag(ADVICE, "--measure", "Measure drafts on short answers, some seconds each.")
    ] = False,
    history: options.HistoryFile = None,
    setup: Any,
    as_json: options.AsJson = False,
) -> int:
    """List the models that are here; or, for TARGET, every draft that fits, the best first.

    Speeds are those that were measured here, by `paceline bench` or by --measure; nothing is guessed. What is
    not measured yet is ordered by what its files and the costs of passes tell."""
    from paceline.doctor.draft_advice.row import AdviceRequest
    from paceline.hardware.threads import choose_threads
    from paceline.models import zoo
    from paceline.models.stores.inventory import list_models

    AdviceRequest(task)
    setup["threads"] = choose_threads(setup["threads"])
    del setup["target"]
    if measure and target is None:
        raise UsageError("--measure needs a TARGET: `paceline pairs TARGET --measure`")
    with Interrupts() as interrupts:
        facts = None if target is None else _target(target)
        found = list_models(folders or [], own=zoo.installed_real_models())
        if facts is None:
            _list(found, as_json)
            return 0
        notes = dict.fromkeys(found.notes)  # each once, in order
        candidates = _candidates(facts, found, notes.setdefault)
        trained = facts.n_ctx or MAX_CONTEXT
        question = AdviceRequest(task, setup.pop("n_ctx") or min(trained, MAX_CONTEXT), setup["cache_type"])
        measured = MEASURED_DRAFTS if measure else 0
        advice = _advise(facts, candidates, question, setup, history, measured, notes.setdefault, interrupts)
    _print(advice, target or "", list(notes), as_json)
    return 0


def _target(text: str) -> ModelFacts:
    from paceline.cli.references import resolved
    from paceline.models.headers.header import read_model_facts
    from paceline.models.names import is_transformers, model_path

    path = model_path(resolved(text))
    if not path.exists():
        raise UsageError(f"{text}: no such file; `paceline pairs` lists the models that are here")
    if path.is_dir() and not is_transformers(path):
        raise UsageError(f"{text}: neither a GGUF file nor a model of transformers: it has no config.json")
    facts = read_model_facts(path)
    if not facts.size:
        raise ModelError(f"{text}: has no weights: fetch them too")
    return facts


def _list(found: Inventory, as_json: bool) -> None:
    from paceline.report import models

    if as_json:
        print_json(found.as_dict())
        return
    if found.models:
        models.write([one.as_dict() for one in found.models], sys.stdout)
    else:
        print("\n".join(models.no_models_lines(found.as_dict()["places"])), file=sys.stderr)
    for line in models.first_notes(found.notes):
        print_note(line)


def _candidates(target: ModelFacts, found: Inventory, note: Note) -> list[DraftCandidate]:
    """Return every smaller model, by whether it fits; those that come with Paceline too."""
    from paceline.doctor.draft_advice.row import DraftCandidate
    from paceline.models import zoo
    from paceline.models.compatibility.check import compare_all
    from paceline.models.headers.facts import ATTENTION
    from paceline.models.headers.header import read_model_facts

    smaller = [one for one in found.models if one.facts.format == "gguf" and one.facts.size < target.size]
    paths = {zoo.draft_path(): "zoo:draft"} | {one.facts.path: one.reference for one in smaller}
    drafts: list[tuple[ModelFacts, str]] = []

    def with_vocabulary() -> Iterator[ModelFacts]:  # one vocabulary at a time is in memory
        for path, reference in paths.items():
            try:
                draft = read_model_facts(path)
                if draft.size >= target.size or path.samefile(target.path):
                    continue
            except (ModelError, OSError) as error:  # gone, or changed, since it was found
                note(f"{reference}: {error}")
                continue
            if draft.memory != ATTENTION:
                note(
                    f"{reference}: is left out: it is {draft.memory}, and its state cannot be rolled back yet"
                )
                continue
            drafts.append((replace(draft, tokenizer=None), reference))
            yield draft

    verdicts = [str(one.verdict) for one in compare_all(target, with_vocabulary())]
    return [DraftCandidate(*draft, verdict) for draft, verdict in zip(drafts, verdicts, strict=True)]


def _advise(
    target: ModelFacts,
    candidates: Sequence[DraftCandidate],
    question: AdviceRequest,
    setup: dict[str, Any],
    history: Path | None,
    n_measured: int,
    note: Note,
    interrupts: Interrupts,
) -> DraftAdvice:
    """Rank the candidates. n_measured: how many of the best are measured first."""
    from paceline.bench.history import default_path
    from paceline.cli.progress import progress
    from paceline.doctor.draft_advice.measuring import known, measure
    from paceline.doctor.draft_advice.ranking import advise
    from paceline.doctor.draft_advice.row import MODEL
    from paceline.models.compatibility.known_pairs import known_drafts

    def ranked(now: dict[Path | None, Measured] | None = None) -> DraftAdvice:
        way = setup | {"kernels": setup["kernels"] == "auto"}
        facts = known(target, question, way, history=history or default_path(), note=note, now=now)
        return advise(target, candidates, question, facts, known_drafts(target))

    advice = ranked()
    if not n_measured or advice.refused:
        return advice
    by_reference = {one.reference: one for one in candidates}
    best = [by_reference[row.reference] for row in advice.rows if row.drafter == MODEL and row.fits]
    best = best[:n_measured]
    loading = setup | {"n_ctx": min(question.n_ctx, target.n_ctx or question.n_ctx)}
    with progress({"measuring": 1 + len(best)}, interrupts) as tick:
        now = measure(target.path, best, question, loading, lambda: tick("measuring"), note)
    return ranked(now)


def _print(advice: DraftAdvice, target: str, notes: Sequence[str], as_json: bool) -> None:
    """target: as it was named."""
    from paceline.report import advice as report

    record = advice.as_dict()
    record["target"]["reference"] = target
    if as_json:
        print_json(record | {"advice": report.advice(record), "notes": list(notes)})
        return
    from paceline.report.models import first_notes

    report.write(record, sys.stdout)
    for line in first_notes(notes):
        print_note(line)


def check(
    target: Annotated[str, argument("TARGET", "The model to make faster.")],
    draft: Annotated[str, argument("DRAFT", "The smaller one that would draft.")],
    as_json: options.AsJson = False,
) -> int:
    """Tell whether a draft model fits a target, why, and what to do if not.

    Reads the headers of GGUF files, or config.json and tokenizer.json of a folder; never the weights. Exit
    code 3 where it does not fit.
    """
    from paceline.cli.references import resolved
    from paceline.models.compatibility.check import compare
    from paceline.models.headers.header import read_model_facts
    from paceline.models.names import model_path

    found = compare(
        read_model_facts(model_path(resolved(target))), read_model_facts(model_path(resolved(draft)))
    )
    if as_json:
        print_json(found.as_dict())
    else:
        from paceline.report.compatibility import write

        write(found.as_dict(), sys.stdout)
    return 0 if found.usable else 3
