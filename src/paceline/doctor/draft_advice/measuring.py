"""Where advice gets its facts from: kept costs, earlier benches, and a short run of a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.backends.registry import BackendSpec
from paceline.bench.method import parse
from paceline.bench.suites.workload import Item
from paceline.doctor.draft_advice.row import (
    ANY_TASK,
    TASKS,
    AdviceRequest,
    DraftCandidate,
    Measured,
    MeasuredFacts,
)
from paceline.doctor.stored_costs import known_costs
from paceline.models.compatibility.check import MAPPABLE
from paceline.models.headers.facts import ModelFacts
from paceline.speculative.errors import HistoryError, PacelineError, UsageError
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.speedup_formulas import acceptance
from paceline.speculative.sampling import Sampling
from paceline.system.identity import cpu_name, file_fingerprint

RUNS = 200  # of the history, the newest
ITEMS, TOKENS = 3, 96  # of a short run
LONGEST = 1200  # characters of a prompt
SUITES = {"math": ("maths",), "summary": ("grounded",)}  # categories of suites, by the task that they are

Note = Callable[[str], object]


def known(
    target: ModelFacts,
    question: AdviceRequest,
    way: Mapping[str, Any],
    *,
    history: Path,
    note: Note,
    now: Mapping[Path | None, Measured] | None = None,
) -> MeasuredFacts:
    """way: how the models are run, the settings of a Way. history: the benches' file, which need not exist.
    note: told of what cannot be read. now: what was measured just now, by path."""
    runs = _runs(history, note)
    machine = {"processor": cpu_name(), "threads": way["threads"]}

    def costs(draft: ModelFacts | None) -> DecodingCosts | None:
        large = known_costs(BackendSpec(target.path, way), "target")
        small = None if draft is None else known_costs(BackendSpec(draft.path, way), "draft")
        if large is None or (draft is not None and small is None):
            return None
        return DecodingCosts(large.cost, None if small is None else small.cost, large.step)

    def measured(draft: ModelFacts | None) -> Measured | None:
        path = None if draft is None else draft.path
        if now and path in now:
            return now[path]
        if not runs or not target.path.is_file():
            return None
        # With a draft model, auto is what `paceline run` does.
        ways = [("suffix",), ("lookup",)] if draft is None else [("model", "auto")]
        its = None if draft is None else file_fingerprint(draft.path)
        found = (
            newest_result(runs, file_fingerprint(target.path), its, way, question.task, machine)
            for way in ways
        )
        return next((one for one in found if one is not None), None)

    return MeasuredFacts(costs, measured, available_memory(gpus=bool(way["gpu_layers"])))


def _runs(path: Path, note: Note) -> list[dict[str, Any]]:
    """Nothing is made where nothing was measured yet."""
    if not path.is_file():
        return []
    from paceline.bench.history import History

    try:
        return History(path).runs(RUNS)
    except HistoryError as error:
        note(str(error))
        return []


def measure(
    target: Path,
    drafts: Sequence[DraftCandidate],
    question: AdviceRequest,
    given: dict[str, Any],
    done: Callable[[], object],
    note: Note,
) -> dict[Path | None, Measured]:
    """Decode a few answers of the task plainly, by copying alone, and with each of the drafts.

    What passes cost is measured on loading, and kept. given: what `assemble.load` takes besides. done: called
    after each. note: told of drafts that cannot be loaded, which end nothing."""
    found: dict[Path | None, Measured] = {}
    for one in (None, *drafts):
        path = None if one is None else one.facts.path
        more: dict[str, Any] = {"draft": path}
        if one is None:
            more = {"drafters": "suffix,lookup", "policy": "rate"}
        elif one.verdict == MAPPABLE:
            more["cross_vocab"] = "auto"
        try:
            found[path] = _run(target, question, given | more)
        except PacelineError as error:
            if one is None:
                raise
            note(f"not measured: {error}")
        done()
    return found


def _run(target: Path, question: AdviceRequest, given: dict[str, Any]) -> Measured:
    from paceline.bench.prompts import RequestBuilder
    from paceline.bench.suites import workload
    from paceline.loading import load

    longest = min(LONGEST, given["n_ctx"] - TOKENS)
    suite = workload.load(TASKS[question.task])
    items = [item for item in suite if not item.session and _length(item) <= longest]
    if not items:
        raise UsageError(f"a context of {given['n_ctx']} tokens (-c) is too short for the task's texts")
    seconds = dict.fromkeys((True, False), 0.0)
    accepted = rejected = 0
    with load(target, **given) as llm:
        chosen = workload.sample_items(items, ITEMS)
        prompts = RequestBuilder(llm, n=TOKENS, ignore_eos=True, sampling=Sampling(), seed=0)
        for item in chosen:
            tokens = prompts.ask(item, {}).tokens
            for plain in (True, False):
                answer = llm.generate(tokens, max_tokens=TOKENS, ignore_eos=True, plain=plain, remember=False)
                seconds[plain] += answer.seconds
                if not plain:
                    accepted += answer.stats.accepted
                    rejected += answer.stats.rejected
    speedup = seconds[True] / max(seconds[False], 1e-9)
    return Measured(speedup, None, None, acceptance(accepted, rejected), "measured")


def _length(item: Item) -> int:
    """In characters, which are no fewer than tokens."""
    return len(item.prompt) + sum(len(text or "") for _, text in item.messages)


def available_memory(*, gpus: bool = False) -> int:
    """Bytes that processes can still get, by the system's word and the container's; what files fill is given
    back to them, and so counts. gpus: with what is free of the memory that GPUs have of their own."""
    import psutil

    from paceline.hardware.containers import read
    from paceline.hardware.files import SystemFiles
    from paceline.hardware.gpus import read as read_gpus

    free, limit = int(psutil.virtual_memory().available), read(SystemFiles()).memory
    free = free if limit is None else min(free, limit)
    if gpus:
        free += sum(gpu.free or 0 for gpu in read_gpus(SystemFiles()) if not gpu.shared)
    return free


def newest_result(
    runs: Iterable[Mapping[str, Any]],
    target: str,
    draft: str | None,
    drafters: tuple[str, ...],
    task: str,
    machine: Mapping[str, Any],
) -> Measured | None:
    """The newest bench of these two models in which one of the drafters was measured alone; of several, and
    of several settings, the fastest. runs: newest first (History.runs). target, draft: fingerprints. task: of
    the suite; ANY for all of it. machine: processor and threads, without which a speed is not this one's."""
    for run in runs:
        known = run["provenance"]
        if run["status"] != "done" or _fingerprint(known, "target") != target or not _here(known, machine):
            continue
        if draft is not None and _fingerprint(known, "draft") != draft:
            continue
        lines = (_measured(run, result) for result in run["results"] if _fits(result, drafters, task))
        found = [one for one in lines if one is not None]
        if found:
            return max(found, key=lambda one: one.speedup)
    return None


def _fits(result: Mapping[str, Any], drafters: tuple[str, ...], task: str) -> bool:
    """A suite of one task has no result for all of them: then only that task was measured."""
    categories = ("",) if task == ANY_TASK else (task, *SUITES.get(task, ()))
    named = result["system"].partition(":")[0] in drafters
    return named and bool(result["lossless"]) and result["category"] in categories


def _measured(run: Mapping[str, Any], result: Mapping[str, Any]) -> Measured | None:
    try:
        drafting = parse(result["system"], run["plan"].get("drafting", {})).drafting
    except (PacelineError, TypeError):  # of another version
        return None
    gain = result["speedup"]
    if gain is None or (gain["value"] < 1.0 and drafting.policy != "rate"):
        return None  # a rule that drafts where it does not pay says nothing of one that would not have
    return Measured(gain["value"], gain["low"], gain["high"], result["acceptance"], f"bench {run['id']}")


def _fingerprint(known: Mapping[str, Any], role: str) -> str | None:
    model = known.get(role)
    return model.get("fingerprint") if isinstance(model, Mapping) else None


def _here(known: Mapping[str, Any], machine: Mapping[str, Any]) -> bool:
    its = known.get("machine") or {}
    return bool(its.get("processor") == machine["processor"] and known.get("threads") == machine["threads"])
