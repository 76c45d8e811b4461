"""No file ends the process: what a header does not settle is tried in another one, once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import rewritten, write_llama, write_parts
from paceline.backends.llama_cpp import LlamaTarget, gate
from paceline.backends.registry import open_tokenizer
from paceline.models import zoo
from paceline.models.headers.gguf_writer import TensorToWrite, metadata_field
from paceline.speculative.errors import ModelError, UsageError
from paceline.system import processes


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(gate, "in_load_subprocess", False)
    return tmp_path / "home"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that were started."""
    started: list[list[str]] = []
    start = subprocess.Popen

    def noting(command: list[str], **settings: Any) -> subprocess.Popen[bytes]:
        started.append(command)
        return start(command, **settings)

    monkeypatch.setattr(subprocess, "Popen", noting)
    return started


def load(path: Path) -> None:
    LlamaTarget(path, n_ctx=64, threads=1).close()


def retyped(models: Path, out: Path, kind: int) -> Path:
    """A good model but for one norm's type, which no operation of ggml's takes."""
    name, norm = "blk.0.attn_norm.weight", np.ones(64, {1: np.float16, 27: np.int64}[kind])
    part = TensorToWrite(name, norm.shape, kind, norm.nbytes, lambda: iter([norm]))
    return rewritten(models / "target.gguf", out, lambda _, parts: parts.update({name: part}))


def test_what_comes_with_the_package_is_not_tried(home: Path, trials: list[list[str]]) -> None:
    load(zoo.target_path())
    assert trials == []
    assert not home.exists()


def test_a_model_is_tried_once(tmp_path: Path, trials: list[list[str]]) -> None:
    path = write_llama(tmp_path / "model.gguf", arch="xverse")
    load(path)
    load(path)
    assert len(trials) == 1
    os.utime(path, ns=(1, 1))
    load(path)
    assert len(trials) == 2


@pytest.mark.parametrize("kind", [1, 27], ids=["F16", "I64"])
def test_a_model_that_ends_llama_cpp_is_refused_and_this_process_goes_on(
    models: Path, tmp_path: Path, trials: list[list[str]], kind: int
) -> None:
    path = retyped(models, tmp_path / "model.gguf", kind)
    for tried in (1, 2):  # it is never taken for one that passed
        with pytest.raises(ModelError) as refused:
            load(path)
        said = str(refused.value)
        assert said.startswith(f"{path}: llama.cpp crashes while loading it (")
        assert said.endswith("): is the file damaged? fetch it again")
        assert said.isprintable()
        assert len(trials) == tried


def test_a_vocabulary_that_ends_llama_cpp_is_refused(tmp_path: Path, models: Path) -> None:
    # Text that none of its tokens spells has no bytes to be spelled by.
    field = {(key := "tokenizer.ggml.model"): metadata_field(key, "llama")}
    path = rewritten(models / "target.gguf", tmp_path / "model.gguf", lambda fields, _: fields.update(field))
    with pytest.raises(ModelError, match="crashes while loading it"):
        open_tokenizer(path)


@pytest.mark.parametrize(("limit", "word"), [("BASE_CPU_SECONDS", "damaged"), ("MAX_IDLE_SECONDS", "disk")])
def test_a_trial_that_computes_or_idles_too_long_is_refused(
    limit: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "model.gguf", arch="xverse")
    monkeypatch.setattr(gate, limit, -1.0)
    with pytest.raises(ModelError, match=word):
        load(path)


def test_a_healthy_file_on_a_busy_machine_is_loaded_and_the_load_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that gives the trial a thousandth of a processor: the clock alone would refuse the file."""
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.01)  # so that there are many polls
    monkeypatch.setattr(processes, "_usage", lambda pid, before: (before[0] + 1e-5, before[1]))
    monkeypatch.setattr(gate, "BASE_CPU_SECONDS", 0.1)
    monkeypatch.setattr(gate, "NOTICE_SECONDS", 0.1)
    load(write_llama(tmp_path / "model.gguf", arch="xverse"))
    assert "machine is busy" in capsys.readouterr().err


def test_a_trial_that_cannot_be_recorded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "file"))
    load(write_llama(tmp_path / "model.gguf", arch="xverse"))
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["no interpreter", "one that starts nothing", "one without the package"])
def test_where_nothing_can_be_tried_a_good_model_loads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    names: dict[str, Callable[[], str]] = {
        "no interpreter": lambda: "",
        "one that starts nothing": lambda: str(tmp_path / "nothing"),
        "one without the package": lambda: "/bin/false",
    }
    monkeypatch.setattr(sys, "executable", names[broken]())
    load(write_llama(tmp_path / "model.gguf", arch="xverse"))


def test_another_part_than_the_first_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    for path in (second, third):
        for opens in (load, open_tokenizer):
            with pytest.raises(UsageError, match=f"{path.name}: is one of 3 parts .*give the first, {first}"):
                opens(path)
