"""`paceline pairs` and `paceline check`: the installed models, and the drafts for a target."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import options
from paceline.cli.groups import LLAMA_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import argument, option
from paceline.cli.output import print_json, print_note, print_record, with_typed_names
from paceline.settings import AUTO, EngineOptions
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.printable import printable

if TYPE_CHECKING:
    from paceline.doctor.drafts import AdviceRequest, DraftCandidate, Measured
    from paceline.models.headers.facts import ModelFacts
    from paceline.models.stores.inventory import Inventory

ADVICE = "Advice"
MEASURED_DRAFTS = 3  # the best drafts, which --measure loads
HEAD_CONTEXT = 64  # to check a draft head
MAX_CONTEXT = 4096  # default context, as in `load`

Note = Callable[[str], object]
ADVICE_OPTIONS = OptionGroup(option_table(
    ADVICE,
    ("task", str, "any", "--task", "TASK",
     "What for: code, edit, json, agent, math, summary, chat, quote, prose or any."),
    ("measure", bool, False, "--measure", "", "Measure drafts on short answers, some seconds each."),
))  # fmt: skip


@with_option_groups(request=ADVICE_OPTIONS, setup=LLAMA_OPTIONS)
def pairs(
    *,
    target: Annotated[
        str | None, argument("TARGET", "The model to be made faster, as for -m. Without it: all models here.")
    ] = None,
    request: Any,
    folders: Annotated[
        list[Path] | None, option(ADVICE, "--folder", "DIR", "Look for models here, too.", env=False)
    ] = None,
    setup: Any,
    as_json: options.AsJson = False,
) -> int:
    """List the models on this machine; or, for TARGET, every draft that fits, the best first.

    Speeds were measured here, by `paceline bench` or --measure. Other drafts are ordered by their files and
    the costs of passes."""
    from paceline.cli.references import resolved
    from paceline.doctor.drafts import AdviceRequest
    from paceline.drafts import header_traits
    from paceline.fits import what_fits
    from paceline.hardware.threads import choose_threads
    from paceline.models import zoo
    from paceline.models.headers.header import read_model_facts
    from paceline.models.stores.inventory import list_models
    from paceline.report import pairs as report

    task, measure = request["task"], request["measure"]
    AdviceRequest(task)  # raises for an unknown task
    engine = replace(setup.engine, threads=choose_threads(setup.engine.threads))
    if measure and target is None:
        raise UsageError("--measure needs a TARGET: `paceline pairs TARGET --measure`")
    with Interrupts() as interrupts:
        try:
            facts = None if target is None else read_model_facts(resolved(target))
        except UsageError:
            if (absent := _absent(str(target))) is None:
                raise
            print_record(absent, as_json, report.write_absent)
            return 0
        if facts is not None and not facts.size:
            raise ModelError(f"{target}: has no weights: fetch them too")
        toys = {} if facts is None else {"zoo:draft": zoo.draft_path()}  # a draft, no model to list
        inventory = list_models(folders or [], own=zoo.installed_real_models() | toys)
        inventory.notes.extend(_head_lines(inventory, target, facts))
        if facts is None:
            if as_json:
                print_json(inventory.as_dict())
                return 0
            if inventory.models:
                report.write_models([model.as_dict() for model in inventory.models], sys.stdout)
            else:
                print("\n".join(report.no_models_lines(inventory.as_dict()["places"])), file=sys.stderr)
            for line in report.first_notes(inventory.notes):
                print_note(line)
            return 0
        notes = dict.fromkeys(inventory.notes)  # each once, in order
        candidates = draft_candidates(facts, inventory, notes.setdefault)
        n_ctx = engine.n_ctx or min(facts.n_ctx or MAX_CONTEXT, MAX_CONTEXT)
        wanted = AdviceRequest(task, n_ctx, engine.cache_type)
        n_measured = MEASURED_DRAFTS if measure else 0
        advice = rank_drafts(facts, candidates, wanted, engine, n_measured, notes.setdefault, interrupts)
    advice["target"]["reference"] = target
    advice["kinds"] = what_fits(header_traits(resolved(str(target))))
    if as_json:
        print_json(advice | {"advice": report.advice(advice), "notes": list(notes)})
        return 0
    report.write_advice(with_typed_names(advice), sys.stdout)
    for line in report.first_notes(list(notes)):
        print_note(line)
    return 0


def _absent(target: str) -> dict[str, Any] | None:
    """Return what is known of the drafts for a model of a store that is not on this machine."""
    from paceline.doctor.drafts import reasons
    from paceline.models.compatibility.known_pairs import facts_of_name, known_drafts
    from paceline.models.stores.reference import PATH, parse

    if parse(target).kind == PATH:
        return None
    facts = facts_of_name(target)
    known = {name: getattr(facts, name) for name in ("name", "family", "parameters")}
    return {"target": {"reference": target, **known}, "downloads": [*map(reasons, known_drafts(facts))]}


def _head_lines(inventory: Inventory, target: str | None, facts: ModelFacts | None) -> Iterator[str]:
    """Yield a line for each draft head; for a target, for those of its vocabulary."""
    from paceline.heads.files import head_config

    for head in inventory.heads:
        try:
            config = head_config(head.path)
        except ModelError as error:
            yield printable(str(error))
            continue
        if config is None or (facts and config.target.vocab not in (0, facts.n_vocab)):
            continue
        made_for = config.target
        sizes = [f"{n:,} {what}" for n, what in ((made_for.hidden, "wide"), (made_for.vocab, "tokens")) if n]
        whose = ", ".join([made_for.name or "another model", *sizes])
        advice = f": paceline check {shlex.quote(target)} {shlex.quote(head.reference)}" if target else ""
        yield printable(f"{head.reference}: is a draft head ({config.kind}) for {whose}{advice}")


def heads_for(target: Path, facts: ModelFacts, inventory: Inventory) -> list[str]:
    """Return the names of the draft heads here that were made for a model like this, and open with it."""
    from paceline.heads.files import head_config

    def fits(path: Path) -> bool:
        config = head_config(path)
        return config is not None and config.target.vocab == facts.n_vocab and not try_head(target, path)[0]

    found = list[str]()
    for head in inventory.heads:
        with suppress(ModelError):
            found += [head.reference] if fits(head.path) else []
    return found


def draft_candidates(target: ModelFacts, inventory: Inventory, note: Note) -> list[DraftCandidate]:
    """Return every smaller model, and what drafts in the target's own file, with the compatibility."""
    from paceline.doctor.drafts import DraftCandidate, own_drafts
    from paceline.models.compatibility.check import compare_all
    from paceline.models.headers.header import read_model_facts

    smaller = [it for it in inventory.models if it.facts.format == "gguf" and it.facts.size < target.size]
    paths = {model.facts.path: model.reference for model in smaller}
    drafts: list[tuple[ModelFacts, str]] = []

    def with_vocabulary() -> Iterator[ModelFacts]:  # keeps one vocabulary in memory
        for path, reference in paths.items():
            try:
                draft = read_model_facts(path)
                if draft.size >= target.size or path.samefile(target.path):
                    continue
            except (ModelError, OSError) as error:  # the file has changed
                note(f"{reference}: {error}")
                continue
            drafts.append((replace(draft, tokenizer=None), reference))
            yield draft

    comparisons = list(compare_all(target, with_vocabulary()))
    found = [DraftCandidate(*draft, str(it.verdict)) for draft, it in zip(drafts, comparisons, strict=True)]
    return [*found, *own_drafts(target)]


def rank_drafts(
    target: ModelFacts,
    candidates: Sequence[DraftCandidate],
    request: AdviceRequest,
    engine: EngineOptions,
    n_measured: int,
    note: Note,
    interrupts: Interrupts,
) -> dict[str, Any]:
    """Rank the candidates. n_measured: the number of candidates to measure first."""
    from paceline.cli.progress import progress
    from paceline.doctor.drafts import MODEL, MTP, advise, known, measure
    from paceline.models.compatibility.known_pairs import known_drafts

    def ranked(now: dict[Path | None, Measured] | None = None) -> dict[str, Any]:
        settings = asdict(engine) | {"kernels": engine.kernels == AUTO}
        facts = known(target, request, settings, note=note, now=now)
        return advise(target, candidates, request, facts, known_drafts(target))

    advice = ranked()
    if not n_measured:
        return advice
    by_reference = {candidate.reference: candidate for candidate in candidates}
    fitting = [row["reference"] for row in advice["drafts"] if row["drafter"] in (MODEL, MTP) and row["fits"]]
    best = [by_reference[reference] for reference in fitting[:n_measured]]
    engine = replace(engine, n_ctx=min(request.n_ctx, target.n_ctx or request.n_ctx))
    with progress({"measuring": 1 + len(best)}, interrupts) as tick:
        now = measure(target.path, best, request, engine, lambda: tick("measuring"), note)
    advice = ranked(now)
    if left := [row["reference"] for row in advice["drafts"] if row["fits"] and row["measured"] is None]:
        note(f"without a speed: {', '.join(left)} (--measure tries the {n_measured} most promising)")
    return advice


def check(
    target: Annotated[str, argument("TARGET", "The model to make faster.")],
    draft: Annotated[str, argument("DRAFT", "The smaller one that would draft.")],
    as_json: options.AsJson = False,
) -> int:
    """Check whether a draft model fits a target, and print the reasons and advice.

    Only headers of GGUF files are read, or config.json and tokenizer.json of a folder; for a draft head the
    target is loaded. Exit code 3: it does not fit."""
    from paceline.cli.references import resolved
    from paceline.drafter_table import DRAFT
    from paceline.drafts import header_traits, kind_of
    from paceline.fits import why_not
    from paceline.models.compatibility.check import compare
    from paceline.models.headers.header import read_model_facts
    from paceline.models.names import is_view
    from paceline.report.pairs import write_compatibility

    paths = resolved(target), resolved(draft)
    if (kind := kind_of(paths[1])) == DRAFT:
        compatibility = compare(*map(read_model_facts, paths))
        print_record(compatibility.as_dict(), as_json, write_compatibility)
        return 0 if compatibility.usable else 3
    known, text = header_traits(paths[0]), "a part of the target"
    # What the target's own file has is of no matter for a head in another.
    reason = why_not(kind, known if is_view(paths[1]) else replace(known, mtp=None))
    if not reason and not is_view(paths[1]):
        reason, text = try_head(*paths)
    files = {"target": str(paths[0]), "draft": str(paths[1])}
    record = {**files, "kind": kind, "usable": not reason, "reason": reason or text}
    if as_json:
        print_json(record)
    else:
        verdict = "it does not fit" if reason else "it fits"
        print(f"{kind}: {verdict}: {printable(with_typed_names(record['reason']))}")
    return 3 if reason else 0


def try_head(target: Path, draft: Path) -> tuple[str, str]:
    """Open a draft head with its target. Return the reason why it does not fit, and its description."""
    from paceline.backends.registry import open_engine
    from paceline.drafts import kind_of, open_draft
    from paceline.fits import MTP

    given = {"mtp": True} if kind_of(draft) == MTP else {}
    with closing(open_engine(target, n_ctx=HEAD_CONTEXT, kernels=False, threads=1, **given)) as engine:
        try:
            with closing(open_draft(draft, engine, engine.settings)) as head:
                return "", head.description
        except (ModelError, UsageError) as error:
            return str(error), ""
