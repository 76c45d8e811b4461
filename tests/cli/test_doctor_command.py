"""`paceline doctor`, on models of a few kilobytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command, program
from paceline.core.cost import Costs
from paceline.lab import costs as lab

Capture = pytest.CaptureFixture[str]
QUICK = ("--seconds", "0.2", "--depths", "16", "--rows", "1,2,4")


@pytest.fixture(autouse=True)
def however_busy_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "NOISY", float("inf"))


def doctor(capsys: Capture, models: Path, home: Path, *args: str, draft: bool = False) -> Done:
    files: list[Any] = ["-m", models / "target.gguf", "-t", "1"]
    files += ["-md", models / "draft.gguf"] if draft else []
    return command(capsys, "doctor", *files, *args, PACELINE_HOME=str(home))


def test_the_table_goes_to_stdout_and_nothing_else_anywhere(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    done = doctor(capsys, models, tmp_path, *QUICK)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert "target, after 16 tokens" in lines
    rows = [line.split()[0] for line in lines if line[:4].strip().isdigit()]
    assert rows == ["1", "2", "4"]


def test_json_is_what_costs_are_read_from_with_where_it_came_from(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    record = doctor(capsys, models, tmp_path, *QUICK, "--json", draft=True).json
    costs = Costs.read(record)
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


def test_a_depth_beyond_the_context_is_measured_when_the_context_is_longer(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    def kept(n_ctx: str) -> Any:
        args = ("--seconds", "0.2", "--depths", "16,500", "--rows", "1,2", "--json", "-c", n_ctx)
        return doctor(capsys, models, tmp_path, *args).json["kept"]

    assert [kept("128"), kept("128"), kept("512"), kept("512")] == [[], ["target"], [], ["target"]]


def test_a_step_that_was_learned_outlives_a_new_measurement(
    capsys: Capture, models: Path, tmp_path: Path
) -> None:
    doctor(capsys, models, tmp_path, *QUICK)
    (file,) = (tmp_path / "costs").iterdir()
    said = json.loads(file.read_text()) | {"step": 0.125}
    file.write_text(json.dumps(said))
    assert doctor(capsys, models, tmp_path, *QUICK, "--again", "--json").json["step"] == 0.125


def test_costs_of_a_machine_that_is_too_busy_are_shown_but_not_kept(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "NOISY", 0.0)
    assert doctor(capsys, models, tmp_path, *QUICK).code == 0
    assert not (tmp_path / "costs").exists()


def test_a_plot_is_written_beside_the_table(capsys: Capture, models: Path, tmp_path: Path) -> None:
    done = doctor(capsys, models, tmp_path, *QUICK, "--plot", str(tmp_path / "plot.html"))
    assert "target, after 16 tokens" in done.out
    assert "after 16 tokens" in (tmp_path / "plot.html").read_text(encoding="utf-8")


def test_the_embedded_models_are_the_default(capsys: Capture, tmp_path: Path) -> None:
    record = command(capsys, "doctor", "-t", "1", *QUICK, "--json", PACELINE_HOME=str(tmp_path)).json
    names = [record["made"][role]["file"] for role in ("target", "draft")]
    assert names == ["paceline-target.gguf", "paceline-draft.gguf"]
    assert len(list((tmp_path / "costs").iterdir())) == 2


def test_a_draft_of_another_vocabulary_has_costs_too(
    capsys: Capture, tmp_path: Path, foreign_draft: Path
) -> None:
    done = command(
        capsys, "doctor", "-t", "1", "-md", foreign_draft, *QUICK, "--json", PACELINE_HOME=str(tmp_path)
    )
    assert done.json["draft"]["rows"] == [1, 2, 4]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--seconds", "0"), ("--seconds 0.0", "above 0")),
        (("--seconds", "nan"), ("above 0",)),
        (("--rows", "1,x"), ("--rows 1,x", "whole numbers")),
        (("--rows", "0"), ("--rows 0", "at least 1")),
        (("--depths", ","), ("--depths ,", "whole numbers")),
        (("--depths", "256,300"), ("--depths 256,300", "factor of two")),
        (("--plot", "/nowhere/plot.html"), ("--plot", "folder")),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_loaded(
    capsys: Capture, tmp_path: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    command(capsys, "doctor", "-m", tmp_path / "none.gguf", *args).refused(2, *words)


def test_a_model_that_is_not_there_is_one_line(capsys: Capture, tmp_path: Path) -> None:
    command(capsys, "doctor", "-m", tmp_path / "none.gguf").refused(2, "none.gguf")


def test_as_a_program_without_a_terminal_it_draws_no_progress(models: Path, tmp_path: Path) -> None:
    done = program("doctor", "-m", models / "target.gguf", *QUICK, PACELINE_HOME=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
