"""A diagnosis of drafting that loses or gains little: the likely causes, each with its evidence.

The evidence is from headers, the machine, the costs of passes and a short drafted run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from paceline.api import LLM
from paceline.backends import registry
from paceline.backends.interface import KernelStatus
from paceline.bench.provenance import provenance
from paceline.bench.text_comparison import judge, warm_up
from paceline.drafts import traits_of
from paceline.fits import ABSENT, NO_GRAPH, STRIPPED, what_fits
from paceline.hardware.cores import OtherLoad, cores_taken
from paceline.hardware.probe import Hardware, probe
from paceline.models import zoo
from paceline.models.headers.facts import HYBRID, RECURRENT, ModelFacts
from paceline.models.headers.header import facts_or_note
from paceline.models.resolve import file_of
from paceline.profiling.pass_costs import as_costs, cost_key, measure_costs, roles
from paceline.request_handle import Generation
from paceline.settings import PathLike
from paceline.speculative import speedup_formulas as theory
from paceline.speculative.errors import MissingExtraError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.printable import count
from paceline.speculative.sampling import Sampling
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn

HIGH, MEDIUM = SEVERITIES = ("high", "medium")

ROWS = 8  # batch tokens of the pass that a mixture of experts is judged by
MIN_DRAFT_SHARE = 0.25  # of a step's time: a smaller share does not decide
MIN_REJECTED = 0.5  # of drafts, which are rejected somewhere: fewer do not matter
MIN_DRAFTED_TOKENS = 20  # for an acceptance rate
MIN_ACCEPTANCE = 0.1  # of a draft that fits at all
SHORT_DRAFTS = "keep drafts short and certain (--draft auto, or a higher --p-min)"
FORMAT = 1
# A draft model's passes are cheap, and hardly any has more rows than a target's step emits tokens.
DRAFT_SHARE, DRAFT_ROWS = 0.25, 16
RUN = "run"  # of a progress bar: a tick for each of its TICKS tokens
TOKENS, SECONDS = 96, 6.0  # of the plain and the drafted run together, at most
TICKS = 2 * TOKENS
PROMPT = """def mean(values):
    \"\"\"The arithmetic mean of a list of numbers.\"\"\"
    return sum(values) / len(values)


def variance(values):
    \"\"\"The mean of the squared differences from the mean.\"\"\"
"""

ProgressTick = Callable[[str], None]


@dataclass(frozen=True)
class Evidence:
    """Facts about a pair of models, the machine and a drafted run. None, empty or 0: unknown, causes nothing.
    threads: for decoding; physical, logical: usable cores; quota: processors' worth of time.
    gpus: GPUs that could gain; offload: the engine can use them; target_layers: layers on a GPU.
    memory: kind of memory (Facts.memory). experts, experts_used: of the target.
    mtp: of the target's file (fits.py). cache_type: of the KV cache.
    size: bytes of both models; available, usable: bytes of memory, free before loading and total.
    curve: seconds of a target pass by rows. draft_token: seconds of a draft token.
    doubt: why the measured times are not usable.
    steps, drafted, accepted, rejected, times: of a drafted run (speculative/stats.py).
    others: processors that other programs kept busy."""

    threads: int = 0
    physical: int = 0
    logical: int = 0
    quota: float | None = None
    gpus: int = 0
    offload: bool | None = None
    target_layers: int = 0
    memory: str = ""
    experts: int = 0
    experts_used: int = 0
    mtp: str = ABSENT
    cache_type: str = ""
    size: int = 0
    available: int = 0
    usable: int = 0
    curve: Mapping[int, float] | None = None
    draft_token: float | None = None
    doubt: str = ""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    times: Mapping[str, float] | None = None
    others: float | None = None

    @property
    def acceptance(self) -> float | None:
        """Return the chance that a drafted token is accepted; None after too few tokens."""
        return theory.acceptance(self.accepted, self.rejected) if self.drafted >= MIN_DRAFTED_TOKENS else None

    @property
    def length(self) -> int:
        """Return the mean draft length in tokens."""
        return max(1, round(self.drafted / self.steps)) if self.steps else 0

    def relative(self, rows: int) -> float | None:
        """Return the cost of a pass relative to one row; an unmeasured size costs as the next larger."""
        curve = self.curve or {}
        known = [n for n in sorted(curve) if n >= rows]
        return curve[known[0]] / curve[1] if known and 1 in curve else None

    @property
    def draft_cost(self) -> float | None:
        """Return the cost of a draft token relative to a target pass over one row."""
        if self.draft_token is None or not self.curve or 1 not in self.curve:
            return None
        return self.draft_token / self.curve[1]


@dataclass(frozen=True)
class Cause:
    """A cause of a loss. name: the same in every report. evidence: the numbers. remedy: the advice."""

    name: str
    severity: str
    evidence: str
    remedy: str


def diagnose(evidence: Evidence) -> list[Cause]:
    """Return the causes, the gravest first; what others on the machine did comes before what was measured."""
    found = [
        cause for judge in (causes_in_machine, causes_in_costs, causes_in_model) for cause in judge(evidence)
    ]
    return sorted(found, key=lambda cause: SEVERITIES.index(cause.severity))


def causes_in_machine(e: Evidence) -> Iterator[Cause]:
    threads = count(e.threads, "thread")
    if e.others is not None and e.logical and cores_taken(e.others, e.threads, e.logical):
        why = f"other programs kept {e.others:.1f} of {e.logical} processors busy, next to {threads}"
        remedy = "end them, or leave them cores (-t): threads wait for the slowest among them"
        yield Cause("cores taken by others", HIGH if e.others > 0.5 * e.logical else MEDIUM, why, remedy)
    if e.doubt:
        why = f"{e.doubt}: the machine was too busy to tell what passes cost"
        remedy = "run this again with --refresh when it is calm; nothing is concluded from these times"
        yield Cause("unreliable timings", HIGH, why, remedy)
    if e.quota is not None and e.threads > max(1.0, e.quota):
        why = f"{threads}, and the container's quota is {e.quota:g} processors' time"
        remedy = f"-t {max(1, int(e.quota))}: threads wait for those that the quota stops"
        yield Cause("too many threads", HIGH, why, remedy)
    elif 0 < e.physical < e.threads:
        why = f"{threads}, {count(e.physical, 'physical core')}"
        yield Cause("too many threads", MEDIUM, why, f"-t {e.physical}")
    size = f"the models have {e.size / 1e9:.1f} GB"
    if e.size and e.usable and e.size > e.usable:
        why = f"{size}, this machine {e.usable / 1e9:.1f} GB of memory to give"
        yield Cause("swapping", HIGH, why, "a smaller model, or one quantised further")
    elif e.size and e.available and e.size > e.available:
        why = f"{size}, {e.available / 1e9:.1f} GB of memory were free"
        yield Cause("swapping", MEDIUM, why, "close other programs")
    if e.gpus and e.offload is not None and not e.target_layers:
        why, remedy = "an engine that can use them, and no layers there", "keep layers there (-ngl 99)"
        if not e.offload:
            why = "and the installed llama-cpp-python cannot use any"
            remedy = f"install a build with CUDA, ROCm, Vulkan or Metal, and {remedy}"
        yield Cause("GPU not used", HIGH, f"GPUs here: {e.gpus}, {why}", remedy)


def causes_in_costs(e: Evidence) -> Iterator[Cause]:
    a, ratio, cost = e.acceptance, e.relative(e.length + 1), e.draft_cost
    if a is not None and ratio is not None:
        needed = theory.break_even(ratio, e.length)
        if needed is None or a < needed:
            must = "more than certainty" if needed is None else f"an acceptance of {needed:.2f}"
            why = f"a pass over {e.length + 1} rows costs {ratio:.2f} of one over a single row, which takes "
            why += f"{must} to pay; {a:.2f} was measured"
            yield Cause("verification too dear", HIGH, why, _other_length(e, a))
    total = sum((e.times or {}).values())
    share = (e.times or {}).get("draft", 0.0) / total if total > 0 else 0.0
    if a is not None and ratio is not None and cost is not None and share >= MIN_DRAFT_SHARE:
        free, real = (theory.speedup(a, e.length, c, ratio) for c in (0.0, cost))
        decides = free > 1.0 >= real
        why = f"drafting takes {share:.0%} of a step; a token of the draft {cost:.0%} of a row of the target"
        if decides:
            why += f", and {theory.expected_tokens(a, e.length):.2f} tokens a step do not make up for it"
        remedy = "use a smaller draft model, or lookup, which costs nothing (--draft lookup)"
        yield Cause("draft too dear", HIGH if decides else MEDIUM, why, remedy)
    ratio = e.relative(ROWS)
    if 0 < e.experts_used < e.experts and ratio is not None:
        grown = theory.distinct_experts(e.experts, e.experts_used, ROWS) / e.experts_used
        if ratio >= 1 + (grown - 1) / 3:  # otherwise it is not what the pass waits for
            why = (
                f"{e.experts_used} of {e.experts} experts a token: {ROWS} rows read about {grown:.1f} times "
            )
            why += f"as many, and a pass over them costs {ratio:.2f} of one over a single row"
            yield Cause("expert growth", MEDIUM, why, SHORT_DRAFTS)


def _other_length(e: Evidence, a: float) -> str:
    def verify(rows: int) -> float:
        return e.relative(rows) or float(rows)

    most = max(1, max(e.curve or (2,)) - 1)
    best = theory.best_n_draft(a, e.draft_cost or 0.0, verify, longest=most)
    if best == 0:
        return "decode plainly here (--draft none), or use a draft that is right more often"
    return f"drafts of {best} (--n-draft {best}), or --draft auto, which decides by what passes cost"


def causes_in_model(e: Evidence) -> Iterator[Cause]:
    share = e.rejected / e.steps if e.steps else 0.0
    if e.memory in (RECURRENT, HYBRID) and share > MIN_REJECTED:
        why = f"the target is {e.memory}: after a rejection its state returns to a checkpoint, and accepted "
        why += f"tokens are computed again; that is so for {share:.0%} of drafts"
        yield Cause("checkpoint rollback", MEDIUM, why, SHORT_DRAFTS)
    if e.acceptance is not None and e.acceptance < MIN_ACCEPTANCE and e.cache_type == "q8_0":
        why = f"{e.acceptance:.2f} of drafted tokens were accepted, and keys and values have 8 bits, with "
        why += "which drafts of some models collapse (Gemma 4)"
        yield Cause("quantised cache", HIGH, why, "the usual cache (--cache-type f16)")
    if e.mtp == STRIPPED:
        why = "models like the target predict their own next tokens, with layers that its file lacks"
        remedy = "use a file that has them: repositories whose name ends in -MTP-GGUF (paceline pull)"
        yield Cause("MTP layers left out", MEDIUM, why, remedy)
    elif e.mtp == NO_GRAPH:
        why = "the target has layers for its next tokens, which the engine cannot compute (paceline pairs)"
        yield Cause("MTP layers not computed", MEDIUM, why, "a newer version of the engine may know them")


def probe_hardware(target: PathLike | None, kernels: str) -> Hardware:
    """Return the hardware.
    target: the model whose engine is described; None is the embedded model. kernels: "off" omits them."""
    read_errors = []
    engine = offload = None
    status = KernelStatus(reason="--kernels off")
    try:
        path = file_of(target or zoo.target_path())
        build = registry.backend_build(path)
        engine, offload = build.features, build.offload
        if kernels != "off":
            status = registry.kernel_status(path)
    except MissingExtraError as error:
        read_errors.append(f"what the engine can use: {error}")
    hardware = probe(engine=engine, offload=offload)
    path_or_reason = status.path or (f"none: {status.reason}" if status.reason else None)
    return replace(hardware, kernels=path_or_reason, read_errors=(*hardware.read_errors, *read_errors))


def report_costs(
    llm: LLM,
    effort: MeasurementEffort,
    warn: Warn,
    tick: Callable[[str, float], None],
    *,
    again: bool = False,
) -> dict[str, Any]:
    """Measure and store the costs that were not measured before with as much effort.
    Return the record of `doctor --json`, which DecodingCosts.read reads. stored: the models whose costs were
    known. doubts: by model, why nothing is concluded from its costs. tick: called with
    the model and the completed share."""
    found, doubts, reused = dict[str, CachedCosts](), dict[str, str](), list[str]()
    for role, model in roles(llm.target, llm.draft).items():
        depths = tuple(min(depth, model.caps.n_ctx) for depth in effort.depths)
        request = replace(effort, depths=depths)
        if role == "draft":
            rows = tuple(n for n in effort.rows if n <= DRAFT_ROWS)
            request = replace(request, seconds=DRAFT_SHARE * effort.seconds, rows=rows)
        key = cost_key(model, role)
        cached = load(key, warn)
        if cached is not None and cached.effort.covers(request) and not again:
            found[role] = cached
            reused.append(role)
            continue
        found[role] = measured = measure_costs(model, request, partial(tick, role))
        if cached is not None:
            measured.step = cached.step
        if measured.doubt:
            doubts[role] = measured.doubt
        else:
            store(key, measured, warn)
    return {
        "format": FORMAT,
        **as_costs(found).as_dict(),
        "stored": reused,
        "noise": {role: it.cost.timing_jitter for role, it in found.items() if role not in reused},
        "doubts": doubts,
        "provenance": provenance(llm, asdict(effort) | {"again": again}),
    }


def diagnose_models(
    llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: ProgressTick
) -> dict[str, Any]:
    """Return the diagnosis as `--json` prints it. record: the costs."""
    read_errors: list[str] = []
    target, draft = (
        None if model is None or not model.path.exists() else facts_or_note(model.path, read_errors.append)
        for model in (llm.target, llm.draft)
    )
    costs, doubt, run = DecodingCosts.read(record), next(iter(record["doubts"].values()), ""), None
    evidence = evidence_of_models(hardware, target, draft, costs, llm.target.settings, doubt)
    if llm.draft is not None:
        evidence, run = evidence_of_run(evidence, llm, tick)
    return {
        "run": run,
        "kinds": what_fits(traits_of(llm.target)),
        "causes": [asdict(cause) for cause in diagnose(evidence)],
        "evidence": asdict(evidence),
        "read_errors": read_errors,
    }


def evidence_of_models(
    hardware: Hardware,
    target: ModelFacts | None,
    draft: ModelFacts | None,
    costs: DecodingCosts | None,
    settings: Mapping[str, Any],
    doubt: str = "",
) -> Evidence:
    """Collect evidence without running a model. settings: of the target. doubt: see Evidence."""
    curve, draft_token = None, None
    if costs is not None and not doubt:
        depth = costs.target.depths[0]
        seconds = costs.target.curve(costs.target.max_batch_tokens, depth)
        curve = {n: seconds[n] for n in costs.target.rows}
        draft_token = None if costs.draft is None else costs.draft.seconds(1, depth)
    return Evidence(
        threads=settings["threads"],
        physical=hardware.cores.physical,
        logical=hardware.cores.logical,
        quota=hardware.limits.cpus,
        # Nearly every laptop has an integrated GPU, which shares the processor's memory bandwidth.
        gpus=sum(not (gpu.shared and gpu.vendor == "Intel") for gpu in hardware.gpus),
        offload=hardware.offload,
        target_layers=settings.get("gpu_layers", 0),
        memory=target.memory if target else "",
        experts=target.experts if target else 0,
        experts_used=target.experts_used if target else 0,
        mtp=target.mtp if target else ABSENT,
        cache_type=settings.get("cache_type", ""),
        size=sum(facts.size for facts in (target, draft) if facts is not None),
        available=hardware.memory.available,
        usable=hardware.memory.usable,
        curve=curve,
        draft_token=draft_token,
        doubt=doubt,
    )


def evidence_of_run(evidence: Evidence, llm: LLM, tick: ProgressTick) -> tuple[Evidence, dict[str, Any]]:
    """Decode a short text plainly and with drafts. tick: called after every token; its exceptions end it.
    Return the evidence, and a record. run: as of `paceline run --json`. said: whether the outputs are the
    same. speedup: None if they are not."""
    tokens = llm.tokens(PROMPT)[: max(1, llm.target.caps.n_ctx // 2)]
    warm_up(llm, tokens)
    plain = _generate(llm, tokens, True, tick)
    with OtherLoad() as load:
        drafted = _generate(llm, tokens, False, tick)
    n = min(len(plain.tokens), len(drafted.tokens))
    verdict = judge(llm, tokens, plain.tokens[:n], drafted.tokens[:n], Sampling())
    stats = drafted.stats.as_dict()
    counts = {name: stats[name] for name in ("steps", "drafted", "accepted", "rejected")}
    proven = verdict.identical and plain.tokens_per_second > 0
    return replace(evidence, **counts, others=load.processors, times=stats["time"]), {
        "run": {
            "n_tokens": drafted.n_tokens,
            "tokens_per_second": drafted.tokens_per_second,
            "stats": stats,
            "plain_tokens_per_second": plain.tokens_per_second,
        },
        "said": verdict.verdict,
        "speedup": drafted.tokens_per_second / plain.tokens_per_second if proven else None,
    }


def _generate(llm: LLM, prompt: list[int], plain: bool, tick: ProgressTick) -> Generation:
    until = time.monotonic() + SECONDS / 2
    with llm.stream(prompt, max_tokens=TOKENS, ignore_eos=True, remember=False, plain=plain) as stream:
        for piece in stream:
            for _ in piece.tokens:
                tick(RUN)
            if time.monotonic() > until:
                break
    return stream.result()
