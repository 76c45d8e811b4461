"""Evidence from headers, from the machine, and from a run of two small models."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.doctor import diagnosis
from paceline.doctor.causes import Evidence
from paceline.doctor.diagnosis import evidence_of_models, evidence_of_run
from paceline.hardware.files import Limits
from paceline.hardware.probe import MemoryInfo, probe
from paceline.loading import load
from paceline.models.headers.facts import HYBRID, ModelFacts
from paceline.speculative.policy.costs import DecodingCosts, PassCosts

HARDWARE = replace(
    probe(), limits=Limits(cpus=1.5), memory=MemoryInfo(10**9, 10**8, limit=10**7), gpus=(), offload=False
)


def facts(name: str, **known: Any) -> ModelFacts:
    return ModelFacts((Path(f"{name}.gguf"),), "gguf", name, "llama", **known)


def test_what_headers_and_the_machine_say_is_evidence() -> None:
    target = facts("t", size=100, experts=8, experts_used=2, memory=HYBRID)
    draft = facts("d", size=20)
    costs = DecodingCosts(PassCosts({256: {1: 0.1, 4: 0.2}, 1024: {1: 0.3}}), PassCosts({256: {1: 0.01}}))
    found = evidence_of_models(HARDWARE, target, draft, costs, {"threads": 3, "gpu_layers": 7})
    assert found == Evidence(
        threads=3,
        physical=HARDWARE.cores.physical,
        logical=HARDWARE.cores.logical,
        quota=1.5,
        offload=False,
        target_layers=7,
        memory=HYBRID,
        experts=8,
        experts_used=2,
        target_size=100,
        draft_size=20,
        available=10**8,
        usable=10**7,
        curve={1: 0.1, 4: 0.2},
        draft_token=0.01,
    )


def test_a_run_of_a_model_that_drafts_for_itself_keeps_every_token(models: Path) -> None:
    ticks: Counter[str] = Counter()
    with load(models / "target.gguf", models / "target.gguf", "model", threads=1, p_min=0.0) as llm:
        evidence, run = evidence_of_run(Evidence(), llm, lambda kind: ticks.update([kind]))
    assert evidence.accepted > 0.9 * evidence.drafted > 0  # rounding can turn a near-tie
    assert evidence.times is not None
    assert sum(evidence.times.values()) > 0
    assert evidence.others is not None
    assert evidence.others >= 0
    assert ticks[diagnosis.RUN] <= diagnosis.TICKS
    assert run["said"].startswith(("yes", "up to token"))
    assert (run["speedup"] is None) == (run["said"] != "yes")
