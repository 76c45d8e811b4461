"""A diagnosis of drafting that loses or gains little: the likely causes, each with its evidence.

The evidence is from headers, the machine, the costs of passes and a short drafted run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from paceline.api import LLM
from paceline.backends import registry
from paceline.backends.common import MIN_LONG_PROMPT, early_change
from paceline.backends.interface import KernelStatus
from paceline.bench.jsonl import whole_objects
from paceline.bench.provenance import provenance
from paceline.bench.text_comparison import judge, warm_up
from paceline.doctor.causes import HIGH, MIN_DRAFTED_TOKENS, Cause, Evidence, causes_in_machine, diagnose
from paceline.drafter_table import DRAFT
from paceline.drafts import traits_of
from paceline.fits import ABSENT, what_fits
from paceline.hardware.cores import OtherLoad
from paceline.hardware.probe import Hardware, probe
from paceline.hardware.threads import choose_threads
from paceline.heads.draft_base import DraftBase
from paceline.models import zoo
from paceline.models.compatibility.check import NOTE, compare
from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import facts_or_note
from paceline.models.resolve import file_of
from paceline.profiling.pass_costs import as_costs, cost_key, measure_costs, roles
from paceline.request_handle import Generation
from paceline.settings import Drafting, LoadOptions, PathLike, make_settings
from paceline.speculative import speedup_formulas as theory
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.sampling import Sampling, logprob
from paceline.speculative.tree import chain
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn

FORMAT = 1
# A draft model's passes are cheap, and hardly any has more rows than a target's step emits tokens.
DRAFT_SHARE, DRAFT_ROWS = 0.25, 16
RUN = "run"  # of a progress bar: a tick for each of its TICKS tokens
TOKENS, SECONDS = 96, 6.0  # of the plain and the drafted run together, at most
TICKS = 2 * TOKENS
TRIED_LENGTH = 4  # of drafts that no policy withholds
MIN_JUDGED, MAX_JUDGED = 8, 31  # tokens of the target's text that a draft model judges
TEXT_FIELDS = ("chat template", "BOS", "EOS", "tokenizer", "token texts", "vocabulary size")
NO_KERNELS = "none: "
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
    llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: ProgressTick, requests: Path | None = None
) -> dict[str, Any]:
    """Return the diagnosis as `--json` prints it. record: the costs. requests: a file of recorded ones."""
    read_errors: list[str] = []
    compares = llm.draft is not None and not isinstance(llm.draft, DraftBase)  # vocabularies and templates
    target, draft = (
        facts_or_note(model.path, read_errors.append, tokens=compares)
        if model is not None and model.path.exists()
        else None
        for model in (llm.target, llm.draft)
    )
    costs, doubt, run = DecodingCosts.read(record), next(iter(record["doubts"].values()), ""), None
    evidence = evidence_of_models(hardware, target, draft, costs, llm.target.settings, doubt)
    if llm.draft is not None:
        evidence, run = evidence_of_run(evidence, llm, tick)
    if requests is not None:
        evidence = replace(evidence, **evidence_of_requests(requests))
    return {
        "run": run,
        "kinds": what_fits(traits_of(llm.target)),
        "causes": [asdict(cause) for cause in diagnose(evidence)],
        "evidence": asdict(evidence),
        "read_errors": read_errors,
    }


def before_loading(hardware: Hardware, options: LoadOptions) -> list[Cause]:
    """Return the grave causes in the machine that show before a model is loaded."""
    target, draft = (
        None if path is None else facts_or_note(file_of(path), lambda _: None)
        for path in (options.target or zoo.target_path(), options.draft)
    )
    settings = {"threads": choose_threads(options.engine.threads), "gpu_layers": options.engine.gpu_layers}
    evidence = evidence_of_models(hardware, target, draft, None, settings)
    return [cause for cause in causes_in_machine(evidence) if cause.severity == HIGH]


def evidence_of_models(
    hardware: Hardware,
    target: ModelFacts | None,
    draft: ModelFacts | None,
    costs: DecodingCosts | None,
    settings: Mapping[str, Any],
    doubt: str = "",
) -> Evidence:
    """Collect evidence without running a model. settings: of the target. doubt: see Evidence."""
    curve, draft_token, differences = None, None, tuple[str, ...]()
    if costs is not None and not doubt:
        depth = costs.target.depths[0]
        seconds = costs.target.curve(costs.target.max_batch_tokens, depth)
        curve = {n: seconds[n] for n in costs.target.rows}
        draft_token = None if costs.draft is None else costs.draft.seconds(1, depth)
    if target is not None and draft is not None and draft.tokenizer is not None:
        reasons = compare(target, draft).reasons
        differing = [it for it in reasons if it.text and it.field in TEXT_FIELDS and it.weight != NOTE]
        differences = tuple(f"{it.field}: {it.text}" for it in differing)
    kernels = hardware.kernels or ""
    return Evidence(
        threads=settings["threads"],
        physical=hardware.cores.physical,
        logical=hardware.cores.logical,
        quota=hardware.limits.cpus,
        # Nearly every laptop has an integrated GPU, which shares the processor's memory bandwidth.
        gpus=sum(not (gpu.shared and gpu.vendor == "Intel") for gpu in hardware.gpus),
        offload=hardware.offload,
        target_layers=settings.get("gpu_layers", 0),
        kernels=kernels.removeprefix(NO_KERNELS) if kernels.startswith(NO_KERNELS) else "",
        memory=target.memory if target else "",
        experts=target.experts if target else 0,
        experts_used=target.experts_used if target else 0,
        mtp=target.mtp if target else ABSENT,
        uses_mtp=draft is None,
        cache_type=settings.get("cache_type", ""),
        target_size=target.size if target else 0,
        draft_size=draft.size if draft else 0,
        available=hardware.memory.available,
        usable=hardware.memory.usable,
        quantisation=draft.quantisation if draft else "",
        differences=differences,
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
    counts = {name: stats[name] for name in ("drafted", "accepted", "rejected")}
    proposals = max((one["proposed"] for one in stats["by_source"].values()), default=0)
    translated = llm.drafting.cross_vocab != "off"
    counts |= {"proposals": proposals, "times": stats["time"], "translated": translated}
    counts |= _try_draft(llm, tokens, plain, translated=translated)
    evidence = replace(evidence, others=load.processors, **counts)
    proven = verdict.identical and plain.tokens_per_second > 0
    return evidence, {
        "run": {
            "n_tokens": drafted.n_tokens,
            "tokens_per_second": drafted.tokens_per_second,
            "stats": stats,
            "plain_tokens_per_second": plain.tokens_per_second,
        },
        "said": verdict.verdict,
        "speedup": drafted.tokens_per_second / plain.tokens_per_second if proven else None,
    }


def _try_draft(llm: LLM, prompt: list[int], plain: Generation, *, translated: bool) -> dict[str, Any]:
    """Return the acceptance of drafts of a fixed length, which no policy withholds, and the surprise of a
    draft model by the target's text (Evidence.tried, surprise, log_vocab)."""
    given = {**llm.drafting.explicit_settings, "policy": "fixed", "n_draft": TRIED_LENGTH, "width": 1}
    settings = make_settings(Drafting, {**given, "drafters": llm.drafting.drafters})
    stats = _generate(LLM(llm.target, llm.drafter, settings, llm.draft), prompt, False, lambda _: None).stats
    found, draft = dict[str, Any](), llm.draft
    if stats.drafted >= MIN_DRAFTED_TOKENS:  # slow passes leave no time for more
        found["tried"] = theory.acceptance(stats.accepted, stats.rejected)
    if draft is None or isinstance(draft, DraftBase) or translated or len(plain.tokens) < MIN_JUDGED:
        return found
    text = plain.tokens[: min(MAX_JUDGED, draft.caps.max_tree_nodes, draft.caps.max_batch_tokens - 1)]
    with closing(draft.open()) as session:
        session.extend(prompt)
        if session.pending_tokens:
            draft.forward([(session, session.pending_tokens)], NO_OUTPUTS)
        (out,) = draft.forward([(session, chain(text, DRAFT))], NO_OUTPUTS)
        losses = [-logprob(out.logits(row), token)[0] for row, token in enumerate(text)]
    return found | {"surprise": fmean(losses), "log_vocab": math.log(llm.target.vocab.size)}


def evidence_of_requests(path: Path) -> dict[str, Any]:
    """Return the evidence of a file of recorded requests (`--record`). Raises UsageError."""
    lines = [line for line in whole_objects(path) if {"prompt_tokens", "tokens"} <= line.keys()]
    if not lines:
        raise UsageError(f"{path}: holds no recorded requests: `paceline serve --record FILE` writes them")
    prompts = [line["prompt_tokens"] for line in lines]
    pairs = [pair for pair in pairwise(prompts) if len(pair[1]) >= MIN_LONG_PROMPT]
    early = sum(early_change(after, [before]) is not None for before, after in pairs)
    temperatures = [(line.get("sampling") or {}).get("temperature", 0.0) for line in lines]
    return {
        "requests": len(lines),
        "answer_tokens": median(len(line["tokens"]) for line in lines),
        "temperature": median(temperatures),
        "early_changes": early / max(1, len(pairs)),
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
