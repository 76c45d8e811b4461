"""`paceline train`: from prompts to a head that drafts, by the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import get_args

import pytest

from command_line import PROGRAM, command
from paceline.cli.train import Kind
from paceline.drafter_table import DRAFTERS
from paceline.prepare.training.options import make_options
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.system.locks import run_lock
from training_answers import number_prompts

pytest.importorskip("torch")

Capture = pytest.CaptureFixture[str]
TOY = "toy:seed=3,layers=4,width=16,sharpness=4"
QUICK = ("--epochs", "2", "--batch-tokens", "256", "--depth", "2", "--sessions", "4", "-n", "16")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return number_prompts(tmp_path / "prompts.jsonl", 40)


def test_a_trained_head_drafts(capsys: Capture, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    options = ("-m", TOY, "--data", data, "--held-out", "0.2", "-o", out, *QUICK)
    done = command(capsys, "train", "eagle3", *options, "--json")
    assert done.code == 0, done.err
    card = done.json
    assert card["kind"] == "eagle3"
    assert card["acceptance"]["length"] > 1.0
    assert (card["training"]["answers"] + card["held_out"]["answers"], card["path"]) == (40, str(out))
    run = ("run", "-m", TOY, "-p", "1234", "-n", "20", "--ignore-eos")
    plain = command(capsys, *run, "--draft", "none")
    drafted = command(capsys, *run, "-md", out, "--draft", "eagle3")
    assert (drafted.code, drafted.out) == (0, plain.out), drafted.err
    again = command(capsys, "train", "eagle3", *options)
    assert again.code == 0
    assert f"paceline run -m {TOY} -md {out}" in again.err
    assert str(out) in again.out


def test_bad_settings_are_refused(capsys: Capture, data: Path, tmp_path: Path) -> None:
    for options, message in (
        (("--tv", "2"), "variation"),
        (("--lr", "0"), "learning_rate"),
        (("-o", data), "is a file"),
    ):
        done = command(capsys, "train", "medusa", "-m", TOY, "--data", data, "-o", tmp_path / "x", *options)
        assert done.code != 0
        assert message in done.err
    done = command(capsys, "train", "medusa", "-m", TOY, "-o", tmp_path / "x")
    assert "no prompts to train on" in done.err


def test_folder_in_use_or_with_a_model_is_refused(capsys: Capture, data: Path, tmp_path: Path) -> None:
    train = ("train", "medusa", "-m", TOY, "--data", data, *QUICK)
    with run_lock(tmp_path / "busy"):
        for folders in (
            ("-o", tmp_path / "busy"),
            ("-o", tmp_path / "new", "--cache-dir", tmp_path / "busy"),
        ):
            done = command(capsys, *train, *folders)
            assert (done.code, f"process {os.getpid()}" in done.err) == (2, True), done.err
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for kind in ("medusa", "confidence"):
        with pytest.raises(UsageError, match="has a model"):
            make_options(kind, tmp_path / "model")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_is_a_drafter_or_names_one(kind: str) -> None:
    if kind not in DRAFTERS:
        with pytest.raises(UsageError, match="'model' with -md"):
            Drafting((kind,))


def test_ctrl_c_leaves_a_checkpoint(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    options = ["-m", TOY, "--data", str(data), "--held-out", "0.2", "-o", str(out), *QUICK]
    arguments = [*PROGRAM, "train", "medusa", *options, "--epochs", "100000"]
    environ, pipe = dict(os.environ), subprocess.PIPE
    with subprocess.Popen(arguments, stdout=pipe, stderr=pipe, env=environ) as child:
        deadline = time.monotonic() + 120
        while not (out / "features").is_dir() and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.1)
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=120)
    assert child.returncode not in (0, 1)
    assert (out / "checkpoint.pt").is_file()
    assert not [
        path for path in out.iterdir() if path.suffix not in ("", ".pt", ".json", ".npy", ".safetensors")
    ]
