"""Measurements of `paceline doctor`, imported once the command's options are checked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.api import LLM
from paceline.backends import registry
from paceline.backends.interface import Backend, KernelStatus, TunableBackend
from paceline.cli.interrupts import Interrupts
from paceline.cli.progress import STEPS, by_share, progress
from paceline.doctor import diagnosis, gathering, thread_trials
from paceline.doctor.stored_costs import report_costs
from paceline.hardware.bandwidth import memory_bandwidth
from paceline.hardware.probe import Hardware, probe
from paceline.hardware.threads import choose_threads
from paceline.loading import load
from paceline.models import zoo
from paceline.models.headers.facts import HYBRID, RECURRENT
from paceline.models.resolve import file_of
from paceline.profiling import flash_attention
from paceline.profiling.pass_costs import is_without_flash, to_stderr
from paceline.report import costs as costs_report
from paceline.report import hardware as hardware_report
from paceline.speculative.errors import MissingExtraError, PacelineError
from paceline.speculative.policy.cost_model import DecodingCosts

Tick = Callable[[str], None]
ReportShare = Callable[[str, float], None]  # a stage and its completed share


def probe_hardware(target: str | None, threads: int | None, kernels: str) -> Hardware:
    """Return the hardware, and measure its memory bandwidth with so many threads.

    target: the model whose engine is described; None is the embedded model. kernels: "off" leaves them out.
    """
    read_errors = []
    engine = offload = bandwidth = None
    status = KernelStatus(reason="--kernels off")
    try:
        path = file_of(target or zoo.target_path())
        build = registry.backend_build(path)
        engine, offload = build.features, build.offload
        if kernels != "off":
            status = registry.kernel_status(path)
    except MissingExtraError as error:
        read_errors.append(f"what the engine can use: {error}")
    try:
        bandwidth = memory_bandwidth(choose_threads(threads))
    except PacelineError as error:
        read_errors.append(f"how fast memory is read: {error}")
    hardware = probe(engine=engine, offload=offload, bandwidth=bandwidth)
    path_or_reason = status.path or (f"none: {status.reason}" if status.reason else None)
    return replace(hardware, kernels=path_or_reason, read_errors=(*hardware.read_errors, *read_errors))


def show(hardware: Hardware) -> None:
    hardware_report.write(hardware.as_dict(), sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the rest takes a while


def examine(
    models: dict[str, Any], hardware: Hardware, effort: Any, refresh: bool, measure: bool, as_json: bool
) -> dict[str, Any]:
    """Measure the models. Return the record of `--json`, without which the hardware is printed first."""
    # Named drafters, unlike auto, measure nothing on loading. A recurrent target and a draft of another
    # vocabulary have costs, too.
    if has_recurrent_state(models["target"]):
        models |= {"draft": None}
    alone = models["target"] is not None and models["draft"] is None
    drafting: dict[str, Any] = {"drafters": "none"} if alone else {"drafters": "model", "cross_vocab": "auto"}
    with Interrupts() as interrupts, load(**models, **drafting) as llm:
        if not as_json:
            show(hardware)
        counts: list[int] = []
        if measure and isinstance(llm.target, TunableBackend):
            counts = thread_trials.counts_for(hardware.cores, hardware.limits)
        try_flash = measure and can_try_flash_attention(llm.target)
        work = {"target": STEPS}
        work |= {thread_trials.STAGE: STEPS} if counts else {}
        work |= {flash_attention.PROGRESS_STAGE: STEPS} if try_flash else {}
        if llm.draft is not None:
            work |= {"draft": STEPS, gathering.RUN: gathering.TICKS}
        with progress(work, interrupts) as tick:
            report = by_share(tick)
            record = report_costs(llm, effort, to_stderr, report, again=refresh).as_dict()
            record |= {
                "trials": try_threads(llm.target, counts, report) if counts else None,
                "attention": try_attention(llm.target, report) if try_flash else None,
            }
            return record | {"diagnosis": diagnose(llm, hardware, record, tick)}


def has_recurrent_state(target: str | None) -> bool:
    """Return True if the target's state cannot be rolled back, which the diagnosis explains."""
    if target is None or not Path(target).is_file():
        return False
    facts = gathering.read_header(Path(target), [])
    return facts is not None and facts.memory in (HYBRID, RECURRENT)


def try_threads(target: Any, counts: list[int], report: ReportShare) -> dict[str, Any]:
    """Measure a target with several numbers of threads. Return the trials as `--json` prints them."""
    before = target.settings["threads"]
    progress = partial(report, thread_trials.STAGE)
    try:
        trials = thread_trials.measure_thread_counts(target, target.use_threads, counts, progress=progress)
    finally:
        target.use_threads(before)
    best = trials.index(thread_trials.best(trials))
    return {"tried": [trial.as_dict() for trial in trials], "best": best}


def can_try_flash_attention(target: Backend) -> bool:
    """Return True if flash attention is a choice: Paceline's kernels always have it."""
    settings = target.settings
    if not isinstance(target, TunableBackend) or target.caps.rollback != "free":
        return False
    return not settings.get("kernels") and is_without_flash(settings["gpu_layers"], settings["cache_type"])


def try_attention(target: Any, report: ReportShare) -> dict[str, Any] | None:
    """Measure a target with and without flash attention, and store the faster choice.

    Return the trials as `--json` prints them, or None if the context has no room for them."""
    try:
        trials = flash_attention.measure_both(target, partial(report, flash_attention.PROGRESS_STAGE))
    except PacelineError as error:
        to_stderr(f"flash attention is not tried: {error}")
        return None
    flash_attention.store(target, trials, to_stderr)
    best = trials.index(flash_attention.quicker(trials))
    return {"tried": [asdict(trial) for trial in trials], "best": best}


def diagnose(llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """Return the diagnosis as `--json` prints it. record: the costs and trials."""
    read_errors: list[str] = []
    target, draft = (
        None if model is None or not model.path.exists() else gathering.read_header(model.path, read_errors)
        for model in (llm.target, llm.draft)
    )
    settings, run = llm.target.settings, None
    evidence = gathering.evidence_of_models(
        hardware,
        target,
        draft,
        DecodingCosts.read(record),
        next(iter(record["doubts"].values()), ""),
        threads=settings["threads"],
        gpu_layers=settings.get("gpu_layers", 0),
    )
    if llm.draft is not None:
        evidence, run = gathering.evidence_of_run(evidence, llm, hardware, tick)
    return {
        "run": None if run is None else run.as_dict(),
        "causes": [asdict(cause) for cause in diagnosis.diagnose(evidence)],
        "evidence": asdict(evidence),
        "unread": read_errors,
    }


def write(record: Mapping[str, Any]) -> None:
    """Print the costs, the trials and the diagnosis."""
    costs_report.write(record, sys.stdout)
    for trials, table, advice in (
        (record["trials"], hardware_report.trials, hardware_report.thread_advice),
        (record["attention"], hardware_report.attention, hardware_report.flash_advice),
    ):
        if trials is not None:
            block = table(trials["tried"], trials["best"])
            sys.stdout.write(f"\n{block.title}\n")
            block.write(sys.stdout)
            sys.stdout.write(f"{advice(trials['tried'][trials['best']])}\n")
    sys.stdout.write("\n")
    hardware_report.diagnosis(record["diagnosis"], sys.stdout)
