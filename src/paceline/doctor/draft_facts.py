"""Facts for advice on drafts: stored costs, earlier benches, and short runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.backends.registry import BackendSpec
from paceline.bench import run_file
from paceline.bench.method import parse
from paceline.bench.run_file import Run
from paceline.doctor import draft_advice
from paceline.doctor.draft_advice import AdviceRequest, DraftCandidate, Measured, MeasuredFacts
from paceline.hardware.probe import read_memory
from paceline.models.compatibility.check import MAPPABLE
from paceline.models.headers.facts import ModelFacts
from paceline.models.names import MTP_VIEW, is_view
from paceline.profiling.pass_costs import known_costs
from paceline.settings import AUTO, Drafting, EngineOptions, LoadOptions
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.speedup_formulas import acceptance
from paceline.speculative.sampling import Sampling
from paceline.system.identity import cpu_name, file_fingerprint

MAX_RUNS = 200  # of `paceline bench`, the newest
N_ITEMS, N_TOKENS = 3, 96  # of a short run
MAX_PROMPT_CHARACTERS = 1200
CATEGORIES = {"math": ("maths",), "summary": ("grounded",)}  # further categories of suites by task

Note = Callable[[str], object]


def known(
    target: ModelFacts,
    request: AdviceRequest,
    settings: Mapping[str, Any],
    *,
    note: Note,
    now: Mapping[Path | None, Measured] | None = None,
) -> MeasuredFacts:
    """Return the facts measured on this machine.
    settings: of the backend. note: called about unreadable runs of `paceline bench`. now: results of this
    command, by the draft's path."""
    runs = _runs(note)
    machine = {"processor": cpu_name(), "threads": settings["threads"]}

    def costs(draft: ModelFacts | None) -> DecodingCosts | None:
        large = known_costs(BackendSpec(target.path, settings), "target")
        small = None if draft is None else known_costs(BackendSpec(draft.path, settings), "draft")
        if large is None or (draft is not None and small is None):
            return None
        return DecodingCosts(large.cost, None if small is None else small.cost, large.step)

    def measured(draft: ModelFacts | None) -> Measured | None:
        path = None if draft is None else draft.path
        if now and path in now:
            return now[path]
        if not runs or not target.path.is_file():
            return None
        # With a draft, auto is what `paceline run` does.
        own = str(path) == MTP_VIEW
        systems = [("suffix",), ("lookup",)] if draft is None else [("mtp" if own else "model", "auto")]
        path = target.path if own else path  # its weights are the target's
        fingerprint = None if path is None else str(path) if is_view(path) else file_fingerprint(path)
        models = file_fingerprint(target.path), fingerprint
        found = (newest_result(runs, *models, names, request.task, machine) for names in systems)
        return next((one for one in found if one is not None), None)

    return MeasuredFacts(costs, measured, available_memory(gpus=bool(settings["gpu_layers"])))


def _runs(note: Note) -> list[Run]:
    """Return the newest runs of `paceline bench`."""
    runs = []
    for path in sorted(run_file.folder().glob("*.jsonl"), reverse=True)[:MAX_RUNS]:
        try:
            runs.append(run_file.read(path))
        except UsageError as error:
            note(str(error))
    return runs


def measure(
    target: Path,
    drafts: Sequence[DraftCandidate],
    request: AdviceRequest,
    engine: EngineOptions,
    done: Callable[[], object],
    note: Note,
) -> dict[Path | None, Measured]:
    """Decode a few answers of the task plainly, by copying alone, and with each of the drafts.
    Costs of passes are measured on loading, and stored. done: called after each draft. note: called about
    drafts that cannot be loaded."""
    found: dict[Path | None, Measured] = {}
    for one in (None, *drafts):
        path = None if one is None else one.facts.path
        drafting = Drafting(drafters=("suffix", "lookup"), policy="rate")
        if one is not None:
            translated = one.verdict == MAPPABLE
            drafting = Drafting(drafters=(AUTO,), cross_vocab=AUTO if translated else "off")
        try:
            found[path] = _run(request, LoadOptions(target, path, drafting, engine))
        except PacelineError as error:
            if one is None:
                raise
            note(f"not measured: {error}")
        done()
    return found


def _run(request: AdviceRequest, options: LoadOptions) -> Measured:
    from paceline.bench.prompts import RequestBuilder
    from paceline.bench.suites import workload
    from paceline.loading import load_options

    n_ctx = options.engine.n_ctx
    # A text has no fewer characters than tokens.
    longest = min(MAX_PROMPT_CHARACTERS, n_ctx - N_TOKENS)
    suite = workload.load(draft_advice.TASKS[request.task])
    items = [item for item in suite if not item.session and workload.length(item) <= longest]
    if not items:
        raise UsageError(f"a context of {n_ctx} tokens (-c) is too short for the task's texts")
    seconds = dict.fromkeys((True, False), 0.0)
    accepted = rejected = 0
    with load_options(options) as llm:
        prompts = RequestBuilder(llm, n=N_TOKENS, sampling=Sampling(), seed=0)
        for item in workload.sample_items(items, N_ITEMS):
            tokens = prompts.request(item, {}).tokens
            for plain in (True, False):
                answer = llm.generate(
                    tokens, max_tokens=N_TOKENS, ignore_eos=True, plain=plain, remember=False
                )
                seconds[plain] += answer.seconds
                if not plain:
                    accepted += answer.stats.accepted
                    rejected += answer.stats.rejected
    speedup = seconds[True] / max(seconds[False], 1e-9)
    return Measured(speedup, None, None, acceptance(accepted, rejected), "measured")


def available_memory(*, gpus: bool = False) -> int:
    """Return the bytes that processes can get, within the container's limit. gpus: add their free memory."""
    from paceline.hardware.containers import read
    from paceline.hardware.files import SystemFiles
    from paceline.hardware.gpus import read as read_gpus

    memory = read_memory(read(SystemFiles()))
    free = memory.available if memory.limit is None else min(memory.available, memory.limit)
    if gpus:
        free += sum(gpu.free or 0 for gpu in read_gpus(SystemFiles()) if not gpu.shared)
    return free


def newest_result(
    runs: Iterable[Run],
    target: str,
    draft: str | None,
    drafters: tuple[str, ...],
    task: str,
    machine: Mapping[str, Any],
) -> Measured | None:
    """Return the result of the newest bench of these models that measured one of the drafters alone.
    Of several drafters or settings it is the fastest. runs: newest first. target, draft: fingerprints. task:
    of the suite; ANY_TASK for all of it. machine: the required processor and threads."""

    def fingerprint(made: Mapping[str, Any], role: str) -> str | None:
        model = made.get(role)
        return model.get("fingerprint") if isinstance(model, Mapping) else None

    # A suite of one task has no result for all tasks.
    categories = ("",) if task == draft_advice.ANY_TASK else (task, *CATEGORIES.get(task, ()))
    for run in runs:
        made = run.provenance
        if run.status != "done" or fingerprint(made, "target") != target:
            continue
        here = {"processor": (made.get("machine") or {}).get("processor"), "threads": made.get("threads")}
        if here != machine or (draft is not None and fingerprint(made, "draft") != draft):
            continue
        results = [
            _measured(run, result)
            for result in run.results
            if result["system"].partition(":")[0] in drafters
            and result["lossless"]
            and result["category"] in categories
        ]
        if found := [result for result in results if result is not None]:
            return max(found, key=lambda one: one.speedup)
    return None


def _measured(run: Run, result: Mapping[str, Any]) -> Measured | None:
    try:
        drafting = parse(result["system"], run.plan.get("drafting", {})).drafting
    except (PacelineError, TypeError):  # of another version
        return None
    gain = result["speedup"]
    if gain is None or (gain["value"] < 1.0 and drafting.policy != "rate"):
        return None  # the loss of a policy that always drafts says nothing about one that can decline
    return Measured(
        gain["value"], gain["low"], gain["high"], result["acceptance"], f"bench of {run.started[:10]}"
    )
