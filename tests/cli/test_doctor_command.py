"""`paceline doctor`, on models of a few kilobytes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command
from paceline.backends.interface import KernelStatus
from paceline.cli.replay_input import costs_of
from paceline.models.headers.facts import RECURRENT, ModelFacts
from paceline.speculative.errors import MissingExtraError, ModelError
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.pass_timer import PassTimer

Capture = pytest.CaptureFixture[str]
QUICK = ("--seconds", "0.2", "--depths", "16", "--rows", "1,2,4")


@pytest.fixture(autouse=True)
def however_busy_the_machine(however_busy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs are kept, and memory is not read for half a second in every test."""
    monkeypatch.setattr("paceline.hardware.bandwidth.measure", lambda threads, size: 12.5e9)


def doctor(capsys: Capture, models: Path, home: Path, *args: str, draft: bool = False) -> Done:
    files: list[Any] = ["-m", models / "target.gguf", "-t", "1"]
    files += ["-md", models / "draft.gguf"] if draft else []
    return command(capsys, "doctor", *files, *args, PACELINE_HOME=str(home))


def test_the_table_goes_to_stdout_and_nothing_else_anywhere(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    done = doctor(capsys, models, tmp_path, *QUICK, "--seconds", "2")  # for a busy machine, too
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "target, after 16 tokens" in lines
    rows = [line.split()[0] for line in lines if line[:4].strip().isdigit()]
    assert rows == ["1", "2", "4"]


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (KernelStatus("avx2"), "kernels    avx2"),
        (KernelStatus(reason="no compiler: install one"), "kernels    none: no compiler: install one"),
        (None, "kernels    none: --kernels off"),
    ],
)
def test_which_kernels_are_active_or_why_none_are_is_one_line(
    capsys: Capture,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: KernelStatus | None,
    line: str,
) -> None:
    monkeypatch.setattr("paceline.backends.registry.kernels_of", lambda _: status or pytest.fail("asked"))
    args = ("--kernels", "off") if status is None else ()
    done = doctor(capsys, models, tmp_path, *QUICK, *args)
    assert [said for said in done.out.splitlines() if said.startswith("kernels")] == [line]


def test_json_is_what_costs_are_read_from_with_where_it_came_from(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    record = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    costs = DecodingCosts.read(record)
    assert costs.draft is not None
    assert (costs.target.rows, costs.draft.rows) == ((1, 2, 4), (1, 2, 4))
    assert costs.target.depths == (16,)
    assert (record["format"], record["step"], record["kept"]) == (1, 0.0, [])
    assert set(record["noise"]) == {"target", "draft"}
    assert record["made"]["target"]["file"] == "target.gguf"
    assert record["made"]["request"]["rows"] == [1, 2, 4]


def test_what_was_measured_with_as_much_effort_is_shown_again(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    first = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    done = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True)
    assert done.json["target"] == first["target"]
    assert (done.json["kept"], done.json["noise"]) == (["target", "draft"], {})
    assert done.err == "target and draft: as measured before and updated by use; --again measures anew\n"
    fewer = doctor(capsys, models, tmp_path, "--seconds", "0.1", "--depths", "16", "--rows", "1,4", "--json")
    assert fewer.json["target"] == first["target"]


@pytest.mark.parametrize(
    "more", [("--again",), ("--rows", "1,3"), ("--depths", "16,400"), ("--seconds", "0.3")]
)
def test_what_asks_for_more_is_measured(
    capsys: Capture, models: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    doctor(capsys, models, tmp_path, *QUICK)
    assert doctor(capsys, models, tmp_path, *QUICK, *more, "--json").json["kept"] == []


def test_costs_of_a_machine_that_is_too_busy_are_shown_but_not_kept(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.profiling.pass_costs.NOISY", 0.0)
    done = doctor(capsys, models, tmp_path, *QUICK, draft=True)
    assert done.code == 0
    assert not (tmp_path / "costs").exists()
    assert "the machine was too busy to tell; run again (--again)" in done.out
    assert "times that tell nothing: times of one and the same pass lie 1." in done.out
    assert not any(words in done.out for words in ("break-\neven", "verification too dear", "draft too dear"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seconds", "0"), ("--seconds 0.0", "above 0")),
        (("--seconds", "nan"), ("above 0",)),
        (("--rows", "1,x"), ("--rows 1,x", "whole numbers")),
        (("--rows", "0"), ("--rows 0", "at least 1")),
        (("--depths", ","), ("--depths ,", "whole numbers")),
        (("--depths", "256,300"), ("--depths 256,300", "factor of two")),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    capsys: Capture, tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command(capsys, "doctor", "-m", tmp_path / "none.gguf", *args).refused(2, *words)


def test_the_machine_is_told_first_then_costs_then_what_is_wrong(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    lines = doctor(capsys, models, tmp_path, *QUICK, draft=True).out.splitlines()
    assert lines[0].startswith("processor  ")
    first = [next(i for i, line in enumerate(lines) if words in line) for words in ORDER]
    assert first == sorted(first)
    assert any("read at 12.5 GB/s (measured)" in line for line in lines)


ORDER = ("processor  ", "threads    ", "target, after ", "time of ", "output identical: ")


def test_json_has_the_machine_and_the_diagnosis_and_no_trials(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    record = doctor(capsys, models, tmp_path, *QUICK, "--json", "-c", "600", draft=True).json
    assert record["hardware"]["bandwidth"] == 12.5e9
    assert record["hardware"]["offload"] in (True, False)
    assert sys.platform != "linux" or record["hardware"]["features"]["used"] is not None
    assert record["trials"] is None
    assert record["diagnosis"]["run"]["run"]["stats"]["steps"] > 0
    assert record["diagnosis"]["unread"] == []


def test_a_recurrent_target_is_measured_alone_and_told_why_drafts_lose(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = ModelFacts((models / "target.gguf",), "gguf", "a", "mamba", memory=RECURRENT)
    monkeypatch.setattr("paceline.doctor.gathering.header", lambda path, read_errors: facts)
    record = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    assert (record["draft"], record["diagnosis"]["run"]) == (None, None)
    assert record["diagnosis"]["causes"][0]["name"] == "full-checkpoint rollback"


def test_ctrl_c_during_the_trials_ends_it(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = []

    def sample(timer: PassTimer, length: int, passes: int) -> tuple[float, float]:
        samples.append(length)
        if len(samples) == 4:  # of the second number
            signal.raise_signal(signal.SIGINT)
        return 1.0, 1.0

    monkeypatch.setattr("paceline.doctor.thread_trials._read_and_decode", sample)
    monkeypatch.setattr("paceline.doctor.thread_trials.counts_for", lambda cores, limits: [1, 1])
    done = doctor(capsys, models, tmp_path, *QUICK, "--measure")
    assert (done.code, done.err) == (130, "")
    assert done.out.startswith("processor  ")
    assert "target, after" not in done.out
    assert len(samples) < 8


def test_settings_are_tried_and_the_best_is_named(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.doctor.thread_trials.SECONDS", 0.0)
    monkeypatch.setattr("paceline.doctor.thread_trials.counts_for", lambda cores, limits: [1, 2])
    trials = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json").json["trials"]
    assert [one["threads"] for one in trials["tried"]] == [1, 2]
    assert max(one["decode_ratio"] for one in trials["tried"]) == 1.0
    assert trials["best"] in (0, 1)
    text = doctor(capsys, models, tmp_path, *QUICK, "--measure").out
    assert "threads, tried with the target" in text
    assert " best " in text


def test_flash_attention_is_tried_and_the_faster_is_named(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_kernels: None
) -> None:
    monkeypatch.setattr("paceline.doctor.thread_trials.counts_for", lambda cores, limits: [1])
    monkeypatch.setattr("paceline.doctor.thread_trials.SECONDS", 0.0)
    found = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json").json["attention"]
    assert [one["flash"] for one in found["tried"]] == [True, False]
    assert all(one[name] > 0 for one in found["tried"] for name in ("prompt", "token", "draft"))
    assert found["best"] in (0, 1)
    text = doctor(capsys, models, tmp_path, *QUICK, "--measure", "-fa", "off").out
    assert "flash attention, tried with the target after" in text
    assert "faster: -fa o" in text
    assert len(list((tmp_path / "attention").iterdir())) == 1  # whatever is loaded next goes by it
    other = doctor(capsys, models, tmp_path, *QUICK, "--measure", "--json", "--cache-type", "bf16")
    assert other.json["attention"] is None  # of f16 and f32 it is known that they can do without

    def full(*args: Any, **more: Any) -> None:
        raise ModelError("no room")

    monkeypatch.setattr("paceline.profiling.flash_attention.try_both", full)
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
    assert "how fast memory is read: 0 MB of memory are free" in done.out
    record = doctor(capsys, models, tmp_path, *QUICK, "--json").json
    assert list(record) == ["hardware"]
    assert sys.platform != "linux" or record["hardware"]["features"]["used"] is None


def test_a_curve_that_replay_reads_is_what_json_prints(capsys: Capture, models: Path, tmp_path: Path) -> None:
    done = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True)
    file = tmp_path / "curve.json"
    file.write_text(done.out)
    read = costs_of(file, None, None, None)
    assert read is not None
    assert read.as_dict() == DecodingCosts.read(done.json).as_dict()
