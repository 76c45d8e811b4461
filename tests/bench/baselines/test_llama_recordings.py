"""What llama-server of several versions says of itself (tests/data/llama_cpp)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.baselines.llama_flags import Flags
from paceline.bench.baselines.llama_log import cause_of_silence
from paceline.bench.baselines.prometheus import DraftCounts, drafts_between, read_metrics
from paceline.bench.baselines.replies import Timings

DATA = Path(__file__).parents[2] / "data" / "llama_cpp"
WITH_A_SERVER = ("0.2.90", "0.3.16", "0.3.36")


def timings(version: str) -> dict[str, Any]:
    reply = json.loads((DATA / version / "llama-server-completion.json").read_text())
    return dict(reply["timings"])


@pytest.mark.parametrize("version", WITH_A_SERVER)
def test_the_speed_is_of_the_tokens_after_the_first_in_every_version(version: str) -> None:
    said = timings(version)
    speed = Timings(**said).own_speed
    assert speed == pytest.approx(31 / said["predicted_ms"] * 1e3)
    # What it prints itself counts 32 tokens on a clock of 31, but for the newest.
    own = said["predicted_per_second"] * (1 if version == "0.3.36" else 31 / 32)
    assert speed == pytest.approx(own)


def test_drafts_are_told_by_those_that_know_spec_type() -> None:
    for version in WITH_A_SERVER:
        usage = Flags("llama-server", (DATA / version / "llama-server-help.out.txt").read_text())
        told = usage.has("--spec-type")
        assert Timings(**timings(version)).drafts(told) == ((41, 19) if version == "0.3.36" else (None, None))


def test_its_counters_say_the_same_as_its_timings() -> None:
    pytest.importorskip("prometheus_client")
    after = read_metrics("llama-server", (DATA / "0.3.36" / "llama-server-metrics.txt").read_text())
    assert drafts_between({}, after, 32) == DraftCounts(41, 19)
    before = read_metrics("llama-server", (DATA / "0.3.16" / "llama-server-metrics.txt").read_text())
    assert drafts_between({}, before, 32) is None


def test_a_draft_of_another_vocabulary_is_noticed_in_the_log() -> None:
    cause = cause_of_silence((DATA / "0.3.36" / "llama-server-vocabulary.err.txt").read_text())
    assert cause is not None
    assert "another vocabulary" in cause


def test_a_build_that_translates_tokens_does_speculate() -> None:
    assert cause_of_silence((DATA / "0.3.16" / "llama-server-vocabulary.err.txt").read_text()) is None


def test_the_help_of_2024_is_read_though_it_ends_as_a_failure() -> None:
    flags = Flags("llama-server", (DATA / "0.2.90" / "llama-server-help.out.txt").read_text())
    assert flags.has("--draft")
    assert not flags.has("--spec-type")
