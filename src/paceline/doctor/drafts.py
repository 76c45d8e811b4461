"""The drafts for a target, ranked: by speeds measured here, else by costs of passes and headers.

What is known are stored costs, earlier benches, and short runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from paceline.backends.registry import BackendSpec
from paceline.bench import run_file
from paceline.bench.method import parse
from paceline.bench.run_file import Run
from paceline.fits import USABLE
from paceline.hardware.probe import read_memory
from paceline.models.compatibility.check import COMPATIBLE, MAPPABLE, SAME
from paceline.models.compatibility.known_pairs import KnownPair
from paceline.models.headers.facts import ModelFacts, family_of
from paceline.models.names import MTP_VIEW, VIEW_PREFIX, is_view
from paceline.profiling.pass_costs import stored_costs
from paceline.settings import AUTO, Drafting, EngineOptions, LoadOptions
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.speedup_formulas import acceptance, break_even, expected_gains
from paceline.speculative.validation import unknown
from paceline.system.home import cpu_name, file_fingerprint

MODEL, MTP, NO_MODEL, DOWNLOAD = "model", "mtp", "suffix", "download"  # kinds of drafters
COMPARED_CONTEXT = 1024  # tokens of context that costs are compared after, or half of a shorter context
ANY_TASK = "any"
# The suite that drafts for a task are measured on.
TASKS: Mapping[str, str] = {
    ANY_TASK: "real",
    "code": "real-code",
    "edit": "real-edit",
    "json": "real-json",
    "agent": "real-agent",
    "math": "real-maths",
    "summary": "real-grounded",
    "chat": "real-chat",
    "quote": "quote",
    "prose": "prose",
}
BITS = {"Q8_0": 8.5, "Q4_K_M": 4.9}  # of a weight, in files that are not here
MAX_DRAFT_TOKENS = 16
# Bytes of a KV cache relative to F16; q8_0 has a scale of two bytes for 32 values.
CACHE_SCALE = {"f32": 2.0, "f16": 1.0, "bf16": 1.0, "q8_0": 34 / 64}
NEVER_PAYS = 2.0  # an acceptance rate that no draft has

MAX_RUNS = 200  # of `paceline bench`, the newest
N_ITEMS, N_TOKENS = 3, 96  # of a short run
CATEGORIES = {"math": ("maths",), "summary": ("grounded",)}  # further categories of suites by task

Record = dict[str, Any]
Note = Callable[[str], object]


@dataclass(frozen=True)
class AdviceRequest:
    """task: of TASKS. n_ctx: tokens of context. cache_type: of the KV cache. Raises UsageError."""

    task: str = ANY_TASK
    n_ctx: int = 4096
    cache_type: str = "f16"

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise unknown("task", self.task, TASKS)

    @property
    def depth(self) -> int:
        return max(1, min(COMPARED_CONTEXT, self.n_ctx // 2))


@dataclass(frozen=True)
class DraftCandidate:
    """reference: the name a user types. verdict: see models/compatibility/check.py."""

    facts: ModelFacts
    reference: str
    verdict: str


@dataclass(frozen=True)
class Measured:
    """The speedup of a drafter over plain decoding on this machine.
    low, high: its 95% interval, None after too few runs. acceptance: of each drafted token, None after too
    few tokens. source: "bench 12", or "measured" for a run of this command."""

    speedup: float
    low: float | None
    high: float | None
    acceptance: float | None
    source: str


@dataclass(frozen=True)
class MeasuredFacts:
    """The measurements of this machine. available: bytes of memory.
    costs: of the target and a draft model; None if one was never measured.
    measured: of a draft model, or the target's own layers; of drafters that copy for None."""

    costs: Callable[[ModelFacts | None], DecodingCosts | None]
    measured: Callable[[ModelFacts | None], Measured | None]
    available: int


def own_drafts(target: ModelFacts) -> list[DraftCandidate]:
    """Return the drafts that are in the target's file: its layers for multi-token prediction, and a mixture
    with a quarter of its active experts."""
    drafts = {}
    if target.mtp == USABLE:
        layers = max(1, target.n_layers)
        drafts[MTP_VIEW] = replace(target, files=(Path(MTP_VIEW),), kv_bytes=-(-target.kv_bytes // layers))
    if target.experts_used >= 2:
        reference = f"{VIEW_PREFIX}experts={max(1, target.experts_used // 4)}"
        drafts[reference] = replace(target, files=(Path(reference),))
    return [DraftCandidate(facts, reference, SAME) for reference, facts in drafts.items()]


def advise(
    target: ModelFacts,
    candidates: Sequence[DraftCandidate],
    request: AdviceRequest,
    known: MeasuredFacts,
    pairs: Sequence[KnownPair] = (),
) -> Record:
    """Return the record of `paceline pairs TARGET --json`.
    drafts: the best first; those that do not fit the memory come last.
    downloads: of `pairs`, unless a draft of the target's vocabulary is here. two_rows: the cost of a pass
    over two tokens relative to one, or None."""
    two_rows, downloads = None, list[Record]()
    able = [draft for draft in candidates if draft.verdict in (SAME, COMPATIBLE, MAPPABLE)]
    models = [_row(target, one, request, known) for one in able]
    drafts = sorted([*models, _row(target, None, request, known)], key=_order)
    if not any(row["verdict"] != MAPPABLE and row["fits"] for row in models):
        for pair in pairs:
            candidate = DraftCandidate(_absent(pair), pair.draft, DOWNLOAD)
            downloads.append(_row(target, candidate, request, known) | reasons(pair))
    if (costs := known.costs(None)) is not None:
        curve = costs.target.curve(2, request.depth)
        two_rows = float(curve[2] / curve[1])
    names = ("name", "family", "parameters", "quantisation", "size")
    return {
        "target": {"path": str(target.path)} | {name: getattr(target, name) for name in names},
        **asdict(request),
        "two_rows": two_rows,
        "available": known.available,
        "drafts": drafts,
        "downloads": downloads,
    }


def reasons(pair: KnownPair) -> Record:
    """Return the fields of a known pair in the records of `paceline pairs`."""
    names = ("why", "caveat", "source", "pair", "kind")
    return {"reference": pair.draft, **{name: getattr(pair, name) for name in names}}


def _order(row: Record) -> tuple[Any, ...]:
    """Sort what was measured by its speed. Then comes what was not: by the expected speed, drafts of the
    target's family, the lowest break-even, the smallest; last those of another vocabulary."""
    measured = row["measured"]
    return (
        not row["fits"],
        measured is None,
        measured is None and row["verdict"] == MAPPABLE,
        -(row["expected"] or [1.0])[0] if measured is None else -measured["speedup"],
        row["drafter"] != MTP,
        not row["kin"],
        1.0 if row["break_even"] is None else row["break_even"],
        row["size"],
        row["reference"],
    )


def _row(
    target: ModelFacts, candidate: DraftCandidate | None, request: AdviceRequest, known: MeasuredFacts
) -> Record:
    """Return the record of a draft model, or of the drafters that copy for None.
    kin: of the target's family. draft_cost: of a token, relative to a pass of the target, or None.
    expected: speedups by layers of the target's own that were not measured, by their size, the costs of its
    passes and the acceptance of other models' layers; or None.
    break_even: the lowest acceptance rate that gains, or None; NEVER_PAYS if none does. memory: bytes of both
    models; memory_known: False for a lower bound."""
    draft = None if candidate is None else candidate.facts
    here = candidate is None or candidate.verdict != DOWNLOAD
    costs = known.costs(draft) if here else None
    measured = known.measured(draft) if here else None
    models = (target,) if draft is None else (target, draft)
    if draft is not None and is_view(draft.path):  # shares the target's weights
        models = (target, replace(draft, size=0))
    memory, memory_known = memory_needed(models, request.n_ctx, request.cache_type)
    token = None
    if costs is not None and costs.draft is not None:
        token = costs.draft.seconds(1, request.depth) / costs.target.seconds(1, request.depth)
    drafter = NO_MODEL if candidate is None else MODEL if here else DOWNLOAD
    expected = None
    if candidate is not None and candidate.reference == MTP_VIEW:
        drafter, token = MTP, target.mtp_cost if token is None else token
        expected = expected_speedups(known.costs(None), token, request.depth)
    return {
        "drafter": drafter,
        "reference": "suffix, lookup" if candidate is None else candidate.reference,
        "verdict": "no model" if candidate is None else candidate.verdict,
        "size": 0 if draft is None else draft.size,
        "parameters": None if draft is None else draft.parameters,
        "quantisation": "" if draft is None else draft.quantisation,
        "kin": draft is not None and bool(draft.family) and draft.family == target.family,
        "draft_cost": token,
        "break_even": None if costs is None else break_even_acceptance(costs, request.depth),
        "expected": expected,
        "measured": None if measured is None else asdict(measured),
        "memory": memory,
        "memory_known": memory_known,
        "fits": memory <= known.available,
    }


def expected_speedups(costs: DecodingCosts | None, token: float, depth: int) -> list[float] | None:
    """Return the least and the most that MTP layers may gain. costs: of the target. token: see `_row`."""
    if costs is None:
        return None
    passes = costs.target.curve(MAX_DRAFT_TOKENS + 1, depth)
    return list(expected_gains(token, lambda rows: float(passes[rows] / passes[1]), MAX_DRAFT_TOKENS))


def break_even_acceptance(costs: DecodingCosts, depth: int) -> float:
    """Return the lowest acceptance rate at which drafts of some length gain; NEVER_PAYS if none does."""
    passes = costs.target.curve(MAX_DRAFT_TOKENS + 1, depth)
    token = 0.0 if costs.draft is None else costs.draft.seconds(1, depth)
    plain = passes[1] + costs.step
    lengths = range(1, MAX_DRAFT_TOKENS + 1)
    found = [break_even((passes[1 + n] + n * token + costs.step) / plain, n) for n in lengths]
    return min((a for a in found if a is not None and a < 1.0), default=NEVER_PAYS)


def _absent(pair: KnownPair) -> ModelFacts:
    """Return the known facts of a file that is not here."""
    repository, _, kind = pair.draft.rpartition(":")
    name = repository.rpartition("/")[2]
    return ModelFacts(
        files=(Path(pair.draft),),
        format="gguf",
        name=name,
        arch="",
        family=family_of([name]),
        parameters=pair.largest,
        quantisation=kind,
        size=round(pair.largest * BITS.get(kind, 8.5) / 8),
    )


def memory_needed(models: tuple[ModelFacts, ...], n_ctx: int, cache_type: str = "f16") -> tuple[int, bool]:
    """Return the bytes of models with the same context, and False if that is a lower bound.
    A recurrent model has no KV cache; for others an unknown size of the cache makes a lower bound."""
    scale = CACHE_SCALE.get(cache_type, 1.0)
    total = sum(model.size + round(model.kv_bytes * scale) * n_ctx for model in models)
    return total, all(model.kv_bytes or model.memory == "recurrent" for model in models)


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
    runs = list[Run]()
    for path in sorted(run_file.folder().glob("*.jsonl"), reverse=True)[:MAX_RUNS]:
        try:
            runs.append(run_file.read(path))
        except UsageError as error:
            note(str(error))
    machine = {"processor": cpu_name(), "threads": settings["threads"]}

    def costs(draft: ModelFacts | None) -> DecodingCosts | None:
        small = None if draft is None else BackendSpec(draft.path, settings)
        return stored_costs(BackendSpec(target.path, settings), small)

    def measured(draft: ModelFacts | None) -> Measured | None:
        path = None if draft is None else draft.path
        if now and path in now:
            return now[path]
        if not runs or not target.path.is_file():
            return None
        own = str(path) == MTP_VIEW
        systems = ("suffix", "lookup") if draft is None else (MTP if own else MODEL,)
        path = target.path if own else path  # its weights are the target's
        fingerprint = None if path is None else str(path) if is_view(path) else file_fingerprint(path)
        return newest_result(runs, file_fingerprint(target.path), fingerprint, systems, request.task, machine)

    return MeasuredFacts(costs, measured, available_memory(gpus=bool(settings["gpu_layers"])))


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
        drafting = Drafting(drafters=("suffix", "lookup"), policy="goodput")
        if one is not None:
            # Alone: what `auto` copies from the text is no merit of the draft.
            own, translated = str(path) == MTP_VIEW, one.verdict == MAPPABLE
            drafters = (MTP if own else MODEL,)
            drafting = Drafting(drafters, policy="goodput", cross_vocab=AUTO if translated else "off")
        try:
            found[path] = _run(request, LoadOptions(target, path, drafting, engine))
        except PacelineError as error:
            if one is None:
                raise
            note(f"not measured: {error}")
        done()
    return found


def _run(request: AdviceRequest, options: LoadOptions) -> Measured:
    from paceline.loading import load_options
    from paceline.prepare.suite_prompts import MAX_PROMPT_CHARACTERS, short_items, tokenise_prompts

    # A text has no fewer characters than tokens.
    longest = min(MAX_PROMPT_CHARACTERS, options.engine.n_ctx - N_TOKENS)
    items = short_items(TASKS[request.task], N_ITEMS, longest)
    seconds = dict.fromkeys((True, False), 0.0)
    accepted = rejected = 0
    with load_options(options) as llm:
        for tokens in tokenise_prompts(llm, items, N_TOKENS):
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
    from paceline.hardware.files import SystemFiles, read_limits
    from paceline.hardware.gpus import read as read_gpus

    memory = read_memory(read_limits(SystemFiles()))
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
    categories = ("",) if task == ANY_TASK else (task, *CATEGORIES.get(task, ()))
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
    if gain is None or (gain["value"] < 1.0 and drafting.policy != "goodput"):
        return None  # the loss of a policy that always drafts says nothing about one that can decline
    return Measured(
        gain["value"], gain["low"], gain["high"], result["acceptance"], f"bench of {run.started[:10]}"
    )
