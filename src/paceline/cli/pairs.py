"""`paceline pairs`: the models that are here, and which of them drafts best for a target."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import options
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import argument, flag, option
from paceline.cli.output import note, print_json
from paceline.speculative.errors import ModelError, UsageError

if TYPE_CHECKING:
    from paceline.doctor.draft_advice.row import DraftAdvice, DraftCandidate, Measured
    from paceline.models.headers.facts import ModelFacts
    from paceline.models.stores.inventory import Inventory

ADVICE = "Advice"
MEASURED_DRAFTS = 3  # that --measure loads: the best ones by what is known without
LONGEST_CONTEXT = 4096  # where none is asked for (assemble.load)
AT_ONCE = 4  # vocabularies that are read

Note = Callable[[str], object]


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
    ctx_size: options.Context = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    flash_attn: options.FlashAttention = "auto",
    cache_type: options.CacheType = "f16",
    kernels: options.Kernels = "auto",
    as_json: options.AsJson = False,
) -> int:
    """List the models that are here; or, for TARGET, every draft that fits, the best first.

    Speeds are those that were measured here, by `paceline bench` or by --measure; nothing is guessed. What is
    not measured yet is ordered by what its files and the costs of passes tell."""
    from paceline.doctor.draft_advice.row import AdviceRequest
    from paceline.hardware.threads import choose_threads

    AdviceRequest(task)
    way = {
        "threads": choose_threads(threads),
        "gpu_layers": gpu_layers,
        "flash_attention": options.FLASH_ATTENTION[flash_attn],
        "cache_type": cache_type,
        "kernels": kernels == "auto",
    }
    if measure and target is None:
        raise UsageError("--measure needs a TARGET: `paceline pairs TARGET --measure`")
    notes: dict[str, None] = {}  # each once, in order
    with Interrupts() as interrupts:
        facts = None if target is None else _target(target)
        found = _models(folders or [], interrupts)
        if facts is None:
            _list(found, as_json)
            return 0
        notes |= dict.fromkeys(found.notes)
        candidates = _candidates(facts, found, notes.setdefault, interrupts)
    n_ctx = ctx_size or min(facts.n_ctx or LONGEST_CONTEXT, LONGEST_CONTEXT)
    with Interrupts() as interrupts:  # not held any more: what follows has no ticks but where it measures
        advice = _advise(
            facts, candidates, (task, n_ctx), way, history, measure, notes.setdefault, interrupts
        )
    _print(advice, target or "", list(notes), as_json)
    return 0


def _target(text: str) -> ModelFacts:
    from paceline.cli.references import resolved
    from paceline.models.headers.header import read
    from paceline.models.names import is_transformers, place_of

    path = place_of(resolved(text))
    if not path.exists():
        raise UsageError(f"{text}: no such file; `paceline pairs` lists the models that are here")
    if path.is_dir() and not is_transformers(path):
        raise UsageError(f"{text}: neither a GGUF file nor a model of transformers: it has no config.json")
    facts = read(path)
    if not facts.size:
        raise ModelError(f"{text}: has no weights: fetch them too")
    return facts


def _models(folders: Sequence[Path], interrupts: Interrupts) -> Inventory:
    from paceline.cli.progress import progress
    from paceline.models import zoo
    from paceline.models.stores.inventory import find

    # How much there is to look at is known afterwards.
    with progress({"looking for models": 1}, interrupts) as tick:
        found = find(folders, own=zoo.real(), tick=lambda _: interrupts.check())
        tick("looking for models")
    return found


def _list(found: Inventory, as_json: bool) -> None:
    from paceline.report import models

    if as_json:
        print_json(found.as_dict())
        return
    if found.models:
        models.write([one.as_dict() for one in found.models], sys.stdout)
    else:
        print("\n".join(models.nothing(found.as_dict()["places"])), file=sys.stderr)
    for line in models.remarks(found.notes):
        note(line)


def _candidates(
    target: ModelFacts, found: Inventory, note: Note, interrupts: Interrupts
) -> list[DraftCandidate]:
    """Every smaller model, by whether it fits, without its vocabulary; those that come with Paceline too."""
    from paceline.doctor.draft_advice.row import DraftCandidate
    from paceline.models.compatibility.check import compare_all
    from paceline.models.headers.facts import ATTENTION

    drafts: list[tuple[ModelFacts, str]] = []

    def one_by_one() -> Iterator[ModelFacts]:
        for draft, reference in _smaller(target, found, note, interrupts):
            drafts.append((replace(draft, tokenizer=None), reference))
            yield draft

    verdicts = [str(said.verdict) for said in compare_all(target, one_by_one())]
    out = []
    for (draft, reference), verdict in zip(drafts, verdicts, strict=True):
        if draft.memory != ATTENTION:
            note(f"{reference}: is left out: it is {draft.memory}, and its state cannot be rolled back yet")
        else:
            out.append(DraftCandidate(draft, reference, verdict))
    return out


def _smaller(
    target: ModelFacts, found: Inventory, note: Note, interrupts: Interrupts
) -> Iterator[tuple[ModelFacts, str]]:
    """What may draft for it, with its vocabulary and what it is called."""
    from concurrent.futures import ThreadPoolExecutor

    from paceline.cli.progress import progress
    from paceline.models import zoo
    from paceline.models.headers.header import read

    smaller = [one for one in found.models if one.facts.format == "gguf" and one.facts.size < target.size]
    paths = {zoo.draft_path(): "zoo:draft"} | {one.facts.path: one.reference for one in smaller}
    with progress({"comparing": len(paths)}, interrupts) as tick:
        pool = ThreadPoolExecutor(AT_ONCE, "vocabularies")
        try:
            answers = {path: pool.submit(read, path) for path in paths}
            for path, reference in paths.items():
                try:
                    draft = answers.pop(path).result()
                    if draft.size < target.size and not path.samefile(target.path):
                        yield draft, reference
                except (ModelError, OSError) as error:  # gone, or changed, since it was found
                    note(f"{reference}: {error}")
                tick("comparing")
        finally:
            pool.shutdown(cancel_futures=True)


def _advise(
    target: ModelFacts,
    candidates: Sequence[DraftCandidate],
    asked: tuple[str, int],
    way: dict[str, Any],
    history: Path | None,
    measuring: bool,
    note: Note,
    interrupts: Interrupts,
) -> DraftAdvice:
    from paceline.bench.history import default_path
    from paceline.cli.progress import progress
    from paceline.doctor.draft_advice.measuring import known, measure
    from paceline.doctor.draft_advice.ranking import advise
    from paceline.doctor.draft_advice.row import MODEL, AdviceRequest
    from paceline.models.compatibility.known_pairs import for_target

    question = AdviceRequest(*asked, way["cache_type"])

    def once(now: dict[Path | None, Measured] | None = None) -> DraftAdvice:
        facts = known(target, question, way, history=history or default_path(), note=note, now=now)
        return advise(target, candidates, question, facts, for_target(target))

    advice = once()
    if measuring and not advice.refused:
        by_reference = {one.reference: one for one in candidates}
        first = [by_reference[row.reference] for row in advice.rows if row.drafter == MODEL and row.fits]
        best = first[:MEASURED_DRAFTS]
        given = way | {"n_ctx": min(question.n_ctx, target.n_ctx or question.n_ctx)}
        given["kernels"] = "auto" if way["kernels"] else "off"
        with progress({"measuring": 1 + len(best)}, interrupts) as tick:
            now = measure(target.path, best, question, given, lambda: tick("measuring"), note)
        advice = once(now)
    return advice


def _print(advice: DraftAdvice, target: str, notes: Sequence[str], as_json: bool) -> None:
    """target: as it was named."""
    from paceline.report import advice as report

    record = advice.as_dict()
    record["target"]["reference"] = target

    if as_json:
        print_json(record | {"advice": report.advice(record), "notes": list(notes)})
        return
    from paceline.report.models import remarks

    report.write(record, sys.stdout)
    for line in remarks(notes):
        note(line)
