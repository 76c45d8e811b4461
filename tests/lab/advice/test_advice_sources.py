"""Where advice gets costs from, and what it says where it gets none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advice_facts import facts
from paceline.core.cost import Cost, Costs
from paceline.core.errors import PacelineError
from paceline.lab.advice import sources
from paceline.lab.advice.estimate import ESTIMATED, MEASURED, estimated
from paceline.lab.advice.row import Known, Question
from paceline.machine.models.facts import Facts

WAY = {"threads": 2, "gpu_layers": 0}


def known(target: Facts, notes: list[str], **more: Any) -> Known:
    return sources.known(target, Question(), WAY, history=Path("none"), note=notes.append, **more)


def test_where_the_memorys_speed_is_not_known_one_is_assumed_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(threads: int) -> float:
        raise PacelineError("too few bytes are free")

    monkeypatch.setattr("paceline.machine.hardware.bandwidth.measured", refused)
    notes: list[str] = []
    costs = known(facts(), notes).costs
    for role in ("target", "draft"):
        found, assumed = costs(facts(), role), estimated(facts(), role, 20e9, 2)
        assert found.source == ESTIMATED
        assert found.worst.curve(8, 256) == assumed.worst.curve(8, 256)
    assert notes == ["the memory's speed is not known: too few bytes are free; 20 GB/s are assumed"]


def test_what_was_measured_just_now_needs_no_estimate(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"")
    model, now = facts(files=(file,)), Costs(Cost.flat(2.0), Cost.flat(0.5), 0.125)
    costs = known(model, [], now={file: now}).costs
    assert (costs(model, "target").likely, costs(model, "target").step) == (now.target, 0.125)
    assert (costs(model, "draft").likely, costs(model, "draft").source) == (now.draft, MEASURED)
