"""`paceline doctor`, on models of a few kilobytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command
from paceline.backends.interface import KernelStatus
from paceline.cli.replay import costs_of
from paceline.models.headers.facts import RECURRENT, ModelFacts
from paceline.speculative.errors import MissingExtraError, ModelError
from paceline.speculative.policy.cost_model import DecodingCosts

Capture = pytest.CaptureFixture[str]
QUICK = ("--seconds", "0.2", "--context-lengths", "16", "--rows", "1,2,4")


@pytest.fixture(autouse=True)
def however_busy_the_machine(however_busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are kept, and memory is not read for half a second in every test."""
    monkeypatch.setattr("paceline.hardware.bandwidth.measure", lambda threads, size: 12.5e9)


def doctor(capsys: Capture, models: Path, home: Path, *args: str, draft: bool = False) -> Done:
    files: list[Any] = ["-m", models / "target.gguf", "-t", "1"]
    files += ["-md", models / "draft.gguf"] if draft else []
    return command(capsys, "doctor", *files, *args, PACELINE_HOME=str(home))


def test_which_kernels_are_active_or_why_none_are_is_one_line(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = KernelStatus(reason="no compiler: install one")
    monkeypatch.setattr("paceline.backends.registry.kernel_status", lambda _: status)
    for args, why in (((), "no compiler: install one"), (("--kernels", "off"), "--kernels off")):
        done = doctor(capsys, models, tmp_path, *QUICK, *args)
        assert f"\nkernels    none: {why}\n" in done.out


def test_json_is_what_costs_are_read_from_with_where_it_came_from(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    record = doctor(capsys, models, tmp_path, *QUICK, "--seconds", "1", "--json", draft=True).json
    costs = DecodingCosts.read(record)
    assert costs.draft is not None
    assert (costs.target.rows, costs.draft.rows) == ((1, 2, 4), (1, 2, 4))
    assert costs.target.depths == (16,)
    assert set(record["noise"]) == {"target", "draft"}
    assert record["made"]["target"]["file"] == "target.gguf"
    assert record["hardware"]["bandwidth"] == 12.5e9
    assert (record["kept"], record["trials"]) == ([], None)
    assert record["diagnosis"]["run"]["run"]["stats"]["steps"] > 0
    file = tmp_path / "curve.json"
    file.write_text(json.dumps(record))
    read = costs_of(file, None, None, None)  # as replay reads it
    assert read is not None
    assert read.as_dict() == costs.as_dict()


def test_what_was_measured_with_as_much_effort_is_shown_again(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    first = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    done = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True)
    assert done.json["target"] == first["target"]
    assert (done.json["kept"], done.json["noise"]) == (["target", "draft"], {})
    assert done.err == "target and draft: as measured before and updated by use; --refresh measures anew\n"


@pytest.mark.parametrize("more", [("--refresh",), ("--rows", "1,3"), ("--context-lengths", "16,17,400")])
def test_what_asks_for_more_is_measured(
    capsys: Capture, models: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    doctor(capsys, models, tmp_path, *QUICK)
    record = doctor(capsys, models, tmp_path, *QUICK, *more, "--json").json
    assert record["kept"] == []
    if "400" in more[-1]:
        assert DecodingCosts.read(record).target.depths == (17, 400)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seconds", "0"), ("--seconds 0.0", "above 0")),
        (("--rows", "1,x"), ("--rows 1,x", "whole numbers")),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    capsys: Capture, tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command(capsys, "doctor", "-m", tmp_path / "none.gguf", *args).refused(2, *words)


def test_the_machine_is_told_first_then_costs_then_what_is_wrong(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    # Two seconds: for a busy machine, too.
    done = doctor(capsys, models, tmp_path, *QUICK, "--seconds", "2", draft=True)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0].startswith("processor  ")
    assert [line.split()[0] for line in lines if line[:4].strip().isdigit()][:3] == ["1", "2", "4"]
    first = [next(i for i, line in enumerate(lines) if words in line) for words in ORDER]
    assert first == sorted(first)
    assert any("read at 12.5 GB/s (measured)" in line for line in lines)


ORDER = ("processor  ", "threads    ", "target, after ", "time of ", "output identical: ")


def test_a_recurrent_target_is_measured_alone_and_told_why_drafts_lose(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = ModelFacts((models / "target.gguf",), "gguf", "a", "mamba", memory=RECURRENT)
    monkeypatch.setattr("paceline.doctor.gathering.read_header", lambda path, read_errors: facts)
    record = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    assert (record["draft"], record["diagnosis"]["run"]) == (None, None)
    assert record["diagnosis"]["causes"][0]["name"] == "full-checkpoint rollback"


def test_threads_and_flash_attention_are_tried_and_the_best_are_named(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_kernels: None
) -> None:
    monkeypatch.setattr("paceline.doctor.thread_trials.SECONDS", 0.0)
    monkeypatch.setattr("paceline.doctor.thread_trials.counts_for", lambda cores, limits: [1, 2])
    record = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json").json
    trials, found = record["trials"], record["attention"]
    assert [one["threads"] for one in trials["tried"]] == [1, 2]
    assert max(one["decode_ratio"] for one in trials["tried"]) == 1.0
    assert [one["flash"] for one in found["tried"]] == [True, False]
    assert all(one[name] > 0 for one in found["tried"] for name in ("prompt", "token", "draft"))
    assert {trials["best"], found["best"]} <= {0, 1}
    assert len(list((tmp_path / "attention").iterdir())) == 1  # whatever is loaded next goes by it
    other = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json", "--cache-type", "bf16")
    assert other.json["attention"] is None  # of f16 and f32 it is known that they can do without

    def full(*args: Any, **more: Any) -> None:
        raise ModelError("no room")

    monkeypatch.setattr("paceline.profiling.flash_attention.measure_both", full)
    crowded = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json")
    assert crowded.json["attention"] is None
    assert "paceline: flash attention is not tried: no room" in crowded.err


def test_little_memory_and_no_engine_are_told_in_what_there_is(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError("GGUF models need llama-cpp-python: pip install 'paceline[llama]'")

    monkeypatch.setattr("paceline.backends.llama_cpp.binding.llama_cpp", missing)
    monkeypatch.setattr("paceline.hardware.bandwidth.free_memory", lambda: 1000)
    done = doctor(capsys, models, tmp_path, *QUICK)
    assert done.code == 1
    assert done.err.startswith("paceline: GGUF models need")
    assert done.err.count("\n") == 1
    assert "not read   " in done.out
    assert "what the engine can use: GGUF models need" in done.out
    assert "how fast memory is read: too little memory is free" in done.out
    record = doctor(capsys, models, tmp_path, *QUICK, "--json").json
    assert list(record) == ["hardware"]
    assert sys.platform != "linux" or record["hardware"]["features"]["used"] is None
