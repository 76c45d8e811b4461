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
from paceline.speculative.errors import MissingExtraError
from paceline.speculative.policy.costs import DecodingCosts

Capture = pytest.CaptureFixture[str]
QUICK = ("--seconds", "0.2", "--context-lengths", "16", "--rows", "1,2,4")


@pytest.fixture(autouse=True)
def however_busy_the_machine(however_busy: None) -> None:
    """Costs are stored on a busy machine, too."""


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


def test_json_holds_costs_and_their_provenance(capsys: Capture, models: Path, tmp_path: Path) -> None:
    record = doctor(capsys, models, tmp_path, *QUICK, "--seconds", "1", "--json", draft=True).json
    costs = DecodingCosts.read(record)
    assert costs.draft is not None
    assert (costs.target.rows, costs.draft.rows) == ((1, 2, 4), (1, 2, 4))
    assert costs.target.depths == (16,)
    assert set(record["noise"]) == {"target", "draft"}
    assert record["provenance"]["target"]["file"] == "target.gguf"
    assert record["stored"] == []
    assert record["diagnosis"]["run"]["run"]["stats"]["steps"] > 0
    file = tmp_path / "curve.json"
    file.write_text(json.dumps(record))
    read = costs_of(file, None, None, None)  # as replay reads it
    assert read is not None
    assert read.as_dict() == costs.as_dict()


def test_sufficient_measurement_is_shown_again(capsys: Capture, models: Path, tmp_path: Path) -> None:
    first = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    done = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True)
    assert done.json["target"] == first["target"]
    assert (done.json["stored"], done.json["noise"]) == (["target", "draft"], {})
    assert done.err == "target and draft: as measured before and updated by use; --refresh measures anew\n"


@pytest.mark.parametrize("more", [("--refresh",), ("--rows", "1,3"), ("--context-lengths", "16,17,400")])
def test_what_asks_for_more_is_measured(
    capsys: Capture, models: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    doctor(capsys, models, tmp_path, *QUICK)
    record = doctor(capsys, models, tmp_path, *QUICK, *more, "--json").json
    assert record["stored"] == []
    if "400" in more[-1]:
        assert DecodingCosts.read(record).target.depths == (17, 400)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seconds", "0"), ("--seconds",)),
        (("--rows", "1,x"), ("--rows 1,x", "whole numbers")),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    capsys: Capture, tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command(capsys, "doctor", "-m", tmp_path / "none.gguf", *args).refused(2, *words)


def test_machine_comes_before_costs_and_diagnosis(capsys: Capture, models: Path, tmp_path: Path) -> None:
    # Two seconds: for a busy machine, too.
    done = doctor(capsys, models, tmp_path, *QUICK, "--seconds", "2", draft=True)
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert lines[0].startswith("processor  ")
    assert [line.split()[0] for line in lines if line[:4].strip().isdigit()][:3] == ["1", "2", "4"]
    first = [next(i for i, line in enumerate(lines) if words in line) for words in ORDER]
    assert first == sorted(first)


ORDER = ("processor  ", "threads    ", "target, after ", "time of ", "output identical: ")


def test_without_an_engine_the_machine_is_described_all_the_same(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError("GGUF models need llama-cpp-python: pip install 'paceline[llama]'")

    monkeypatch.setattr("paceline.backends.llama_cpp.binding.llama_cpp", missing)
    done = doctor(capsys, models, tmp_path, *QUICK)
    assert done.code == 1
    assert done.err.startswith("paceline: GGUF models need")
    assert done.err.count("\n") == 1
    assert "not read   " in done.out
    assert "what the engine can use: GGUF models need" in done.out
    record = doctor(capsys, models, tmp_path, *QUICK, "--json").json
    assert list(record) == ["hardware"]
    assert sys.platform != "linux" or record["hardware"]["features"]["used"] is None
