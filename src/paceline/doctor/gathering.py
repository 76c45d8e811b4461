"""The hardware, the costs of passes, and the diagnosis: from headers, the machine and a short drafted run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from paceline.api import LLM
from paceline.backends import registry
from paceline.backends.interface import KernelStatus
from paceline.bench.provenance import provenance
from paceline.bench.text_comparison import judge, warm_up
from paceline.doctor.diagnosis import Evidence, diagnose
from paceline.drafts import traits_of
from paceline.fits import ABSENT, what_fits
from paceline.hardware.cores import OtherLoad
from paceline.hardware.probe import Hardware, probe
from paceline.models import zoo
from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import facts_or_note
from paceline.models.resolve import file_of
from paceline.profiling.pass_costs import as_costs, cost_key, measure_costs, roles
from paceline.request_handle import Generation
from paceline.settings import PathLike
from paceline.speculative.errors import MissingExtraError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.sampling import Sampling
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn

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
