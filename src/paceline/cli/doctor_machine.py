"""The machine's side of `paceline doctor`: what it has, which threads are fastest, why drafting loses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paceline.speculative.errors import MissingExtraError, PacelineError

if TYPE_CHECKING:
    from paceline.api import LLM
    from paceline.backends.interface import Backend
    from paceline.hardware.probe import Hardware

Tick = Callable[[str], None]
Tell = Callable[[str, float], None]  # which share of a stage is over


def look(target: str | None, threads: int | None, kernels: str) -> Hardware:
    """What can be read without loading a model; memory is measured with so many threads. target: says which
    engine is meant; None: the embedded one. kernels: "off" leaves them out."""
    from paceline.backends.interface import KernelStatus
    from paceline.backends.registry import build_of, kernels_of
    from paceline.hardware.bandwidth import measured
    from paceline.hardware.probe import probe
    from paceline.hardware.threads import choose_threads
    from paceline.models import zoo
    from paceline.models.resolve import file_of

    threads, read_errors = choose_threads(threads), []
    engine = offload = bandwidth = None
    status = KernelStatus(reason="--kernels off")
    try:
        path = file_of(target or zoo.target_path())
        build = build_of(path)
        engine, offload = build.features, build.offload
        if kernels != "off":
            status = kernels_of(path)
    except MissingExtraError as error:
        read_errors.append(f"what the engine can use: {error}")
    try:
        bandwidth = measured(threads)
    except PacelineError as error:
        read_errors.append(f"how fast memory is read: {error}")
    found = probe(engine=engine, offload=offload, bandwidth=bandwidth)
    own = status.path or (f"none: {status.reason}" if status.reason else None)
    return replace(found, kernels=own, read_errors=(*found.read_errors, *read_errors))


def show(hardware: Hardware) -> None:
    from paceline.report.hardware import write

    write(hardware.as_dict(), sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the rest takes a while


def is_stateful(target: str | None) -> bool:
    """Whether its header says that drafts cannot be taken back from it: why that loses is told then, instead
    of refusing the pair."""
    from pathlib import Path

    from paceline.doctor.gathering import header
    from paceline.models.headers.facts import HYBRID, RECURRENT

    facts = None if target is None or not Path(target).is_file() else header(Path(target), [])
    return facts is not None and facts.memory in (HYBRID, RECURRENT)


def try_threads(llm: LLM, counts: list[int], tell: Tell) -> dict[str, Any]:
    """With the names of `--json`."""
    from paceline.backends.interface import ThreadSwitch
    from paceline.doctor.thread_trials import STAGE, best, tried

    target = llm.target
    assert isinstance(target, ThreadSwitch)  # the caller has asked
    before = target.settings["threads"]
    try:
        trials = tried(target, target.use_threads, counts, progress=partial(tell, STAGE))
    finally:
        target.use_threads(before)
    return {"tried": [trial.as_dict() for trial in trials], "best": trials.index(best(trials))}


def may_choose(target: Backend) -> bool:
    """Whether it is worth trying with and without flash attention: not with kernels of our own."""
    from paceline.backends.interface import FlashAttentionSwitch
    from paceline.profiling.pass_costs import goes_without_flash

    if not isinstance(target, FlashAttentionSwitch) or target.caps.rollback != "free":
        return False
    if target.settings.get("kernels"):
        return False
    return goes_without_flash(target.settings["gpu_layers"], target.settings["cache_type"])


def try_attention(target: Backend, tell: Tell) -> dict[str, Any] | None:
    """With the names of `--json`; None where there is no room for it. What is best is kept."""
    from paceline.backends.interface import FlashAttentionSwitch
    from paceline.profiling.flash_attention import STAGE, best, keep, try_both
    from paceline.profiling.pass_costs import to_stderr

    assert isinstance(target, FlashAttentionSwitch)  # may_choose() was asked
    try:
        found = try_both(target, partial(tell, STAGE))
    except PacelineError as error:
        to_stderr(f"flash attention is not tried: {error}")
        return None
    keep(target, found, to_stderr)
    return {"tried": [asdict(one) for one in found], "best": found.index(best(found))}


def diagnose(llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """record: what passes cost and what was tried, as `--json` has it."""
    from paceline.doctor import diagnosis, gathering
    from paceline.speculative.policy.cost_model import DecodingCosts

    read_errors: list[str] = []
    target, draft = (
        None if model is None or not model.path.exists() else gathering.header(model.path, read_errors)
        for model in (llm.target, llm.draft)
    )
    given = llm.target.settings
    doubt = next(iter(record["doubts"].values()), "")
    evidence, run = (
        gathering.of_models(
            hardware,
            target,
            draft,
            DecodingCosts.read(record),
            doubt,
            threads=given["threads"],
            gpu_layers=given.get("gpu_layers", 0),
        ),
        None,
    )
    if llm.draft is not None:
        evidence, run = gathering.of_a_run(evidence, llm, hardware, tick)
    return {
        "run": None if run is None else run.as_dict(),
        "causes": [asdict(cause) for cause in diagnosis.diagnose(evidence)],
        "evidence": asdict(evidence),
        "unread": read_errors,
    }


def write(record: Mapping[str, Any]) -> None:
    """What comes after the costs."""
    from paceline.report.hardware import attention, diagnosis, faster, fastest, trials

    for found, table, named in (
        (record["trials"], trials, fastest),
        (record["attention"], attention, faster),
    ):
        if found is not None:
            block = table(found["tried"], found["best"])
            sys.stdout.write(f"\n{block.title}\n")
            block.write(sys.stdout)
            sys.stdout.write(f"{named(found['tried'][found['best']])}\n")
    sys.stdout.write("\n")
    diagnosis(record["diagnosis"], sys.stdout)
