"""What `paceline doctor` finds: what the machine has, what passes cost, and why drafting loses.

Imported once the command's options are known to be right."""

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
Tell = Callable[[str, float], None]  # which share of a stage is over


def probe_hardware(target: str | None, threads: int | None, kernels: str) -> Hardware:
    """Read what can be read without loading a model; memory is measured with so many threads.

    target: says which engine is meant; None: the embedded one. kernels: "off" leaves them out."""
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
    found = probe(engine=engine, offload=offload, bandwidth=bandwidth)
    own = status.path or (f"none: {status.reason}" if status.reason else None)
    return replace(found, kernels=own, read_errors=(*found.read_errors, *read_errors))


def show(hardware: Hardware) -> None:
    hardware_report.write(hardware.as_dict(), sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the rest takes a while


def examined(
    models: dict[str, Any], hardware: Hardware, effort: Any, again: bool, measure: bool, as_json: bool
) -> dict[str, Any]:
    """Return what `--json` prints of the models. as_json: nothing is shown before all is known."""
    # By name, so that nothing is measured on loading. A target that nothing can be drafted for has costs,
    # too, and so has a draft of another vocabulary.
    if has_recurrent_state(models["target"]):
        models |= {"draft": None}
    alone = models["target"] is not None and models["draft"] is None
    drafting: dict[str, Any] = {"drafters": "none"} if alone else {"drafters": "model", "cross_vocab": "auto"}
    with Interrupts() as interrupts, load(**models, **drafting) as llm:
        if not as_json:
            show(hardware)
        tries = measure and isinstance(llm.target, TunableBackend)
        counts = thread_trials.counts_for(hardware.cores, hardware.limits) if tries else []
        attends = measure and can_try_flash_attention(llm.target)
        stages = {"target": True, thread_trials.STAGE: bool(counts), flash_attention.PROGRESS_STAGE: attends}
        work = {stage: STEPS for stage, wanted in stages.items() if wanted}
        if llm.draft is not None:
            work |= {"draft": STEPS, gathering.RUN: gathering.TICKS}
        with progress(work, interrupts) as tick:
            tell = by_share(tick)
            record = report_costs(llm, effort, to_stderr, tell, again=again).as_dict()
            record |= {
                "trials": try_threads(llm.target, counts, tell) if counts else None,
                "attention": try_attention(llm.target, tell) if attends else None,
            }
            return record | {"diagnosis": diagnose(llm, hardware, record, tick)}


def has_recurrent_state(target: str | None) -> bool:
    """Return whether a header says that drafts cannot be taken back: why that loses is told then, instead of
    refusing the pair."""
    facts = None if target is None or not Path(target).is_file() else gathering.read_header(Path(target), [])
    return facts is not None and facts.memory in (HYBRID, RECURRENT)


def try_threads(target: Any, counts: list[int], tell: Tell) -> dict[str, Any]:
    """Try numbers of threads with a target that can switch them; with the names of `--json`."""
    before = target.settings["threads"]
    progress = partial(tell, thread_trials.STAGE)
    try:
        trials = thread_trials.measure_thread_counts(target, target.use_threads, counts, progress=progress)
    finally:
        target.use_threads(before)
    best = trials.index(thread_trials.best(trials))
    return {"tried": [trial.as_dict() for trial in trials], "best": best}


def can_try_flash_attention(target: Backend) -> bool:
    """Return whether it is worth trying with and without flash attention: not with kernels of our own."""
    given = target.settings
    if not isinstance(target, TunableBackend) or target.caps.rollback != "free" or given.get("kernels"):
        return False
    return is_without_flash(given["gpu_layers"], given["cache_type"])


def try_attention(target: Any, tell: Tell) -> dict[str, Any] | None:
    """Try a target that may choose with and without flash attention, and keep what is best.

    With the names of `--json`; None where there is no room for it."""
    try:
        found = flash_attention.measure_both(target, partial(tell, flash_attention.PROGRESS_STAGE))
    except PacelineError as error:
        to_stderr(f"flash attention is not tried: {error}")
        return None
    flash_attention.store(target, found, to_stderr)
    return {"tried": [asdict(one) for one in found], "best": found.index(flash_attention.quicker(found))}


def diagnose(llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """record: what passes cost and what was tried, as `--json` has it."""
    read_errors: list[str] = []
    target, draft = (
        None if model is None or not model.path.exists() else gathering.read_header(model.path, read_errors)
        for model in (llm.target, llm.draft)
    )
    given, run = llm.target.settings, None
    evidence = gathering.evidence_of_models(
        hardware,
        target,
        draft,
        DecodingCosts.read(record),
        next(iter(record["doubts"].values()), ""),
        threads=given["threads"],
        gpu_layers=given.get("gpu_layers", 0),
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
    """Print the costs, what was tried, and the diagnosis."""
    costs_report.write(record, sys.stdout)
    for found, table, named in (
        (record["trials"], hardware_report.trials, hardware_report.thread_advice),
        (record["attention"], hardware_report.attention, hardware_report.flash_advice),
    ):
        if found is not None:
            block = table(found["tried"], found["best"])
            sys.stdout.write(f"\n{block.title}\n")
            block.write(sys.stdout)
            sys.stdout.write(f"{named(found['tried'][found['best']])}\n")
    sys.stdout.write("\n")
    hardware_report.diagnosis(record["diagnosis"], sys.stdout)
