"""Measurements of `paceline doctor`, imported once the command's options are checked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from paceline.api import LLM
from paceline.backends import registry
from paceline.backends.interface import KernelStatus
from paceline.cli.interrupts import Interrupts
from paceline.cli.progress import STEPS, Tick, by_share, progress
from paceline.doctor import diagnosis, gathering
from paceline.drafts import traits_of
from paceline.fits import what_fits
from paceline.hardware.probe import Hardware, probe
from paceline.loading import load_options
from paceline.models import zoo
from paceline.models.headers.header import facts_or_note
from paceline.models.resolve import file_of
from paceline.report.doctor import write_hardware
from paceline.settings import PLAIN, Drafting, LoadOptions, PathLike
from paceline.speculative.errors import MissingExtraError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.system.home import to_stderr


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


def show(hardware: Hardware) -> None:
    write_hardware(hardware.as_dict(), sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()  # the rest takes a while


def examine(
    models: LoadOptions, cross_vocab: str, hardware: Hardware, effort: Any, *, refresh: bool, as_json: bool
) -> dict[str, Any]:
    """Measure the models. Return the record of `--json`, without which the hardware is printed first."""
    # Named drafters, unlike auto, measure nothing on loading.
    drafting = Drafting(drafters=("model",), cross_vocab=cross_vocab)
    if models.target is not None and models.draft is None:
        drafting = PLAIN
    with Interrupts() as interrupts, load_options(replace(models, drafting=drafting)) as llm:
        if not as_json:
            show(hardware)
        drafted = {} if llm.draft is None else {"draft": STEPS, gathering.RUN: gathering.TICKS}
        with progress({"target": STEPS, **drafted}, interrupts) as tick:
            record = gathering.report_costs(llm, effort, to_stderr, by_share(tick), again=refresh)
            return record | {"diagnosis": diagnose(llm, hardware, record, tick)}


def diagnose(llm: LLM, hardware: Hardware, record: Mapping[str, Any], tick: Tick) -> dict[str, Any]:
    """Return the diagnosis as `--json` prints it. record: the costs."""
    read_errors: list[str] = []
    target, draft = (
        None if model is None or not model.path.exists() else facts_or_note(model.path, read_errors.append)
        for model in (llm.target, llm.draft)
    )
    costs, doubt, run = DecodingCosts.read(record), next(iter(record["doubts"].values()), ""), None
    evidence = gathering.evidence_of_models(hardware, target, draft, costs, llm.target.settings, doubt)
    if llm.draft is not None:
        evidence, run = gathering.evidence_of_run(evidence, llm, tick)
    return {
        "run": run,
        "kinds": what_fits(traits_of(llm.target)),
        "causes": [asdict(cause) for cause in diagnosis.diagnose(evidence)],
        "evidence": asdict(evidence),
        "read_errors": read_errors,
    }
