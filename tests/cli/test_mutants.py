"""Broken models and the commands that only read headers: an answer or one clear line, and never a traceback.

What each single mutant makes of llama.cpp itself, benchmarks/mutated_models.py measures."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from command_line import command
from mutations import Model, mutants

Capture = pytest.CaptureFixture[str]
STEP = 61  # one mutant of so many, another one for each command


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's own models are not listed."""
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("paceline.machine.stores.places.OLLAMA_SERVICE", tmp_path / "nobody")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.mark.parametrize(
    ("start", "args"),
    [
        (0, "check BAD GOOD"),
        (1, "check GOOD BAD"),
        (2, "pairs --folder FOLDER"),
        (3, "zoo inflate OUT -m BAD --params 1M --type F16 --force"),
        (4, "transplant BAD --vocab-of GOOD -o OUT --force"),
        (5, "transplant GOOD --vocab-of BAD -o OUT --force"),
    ],
)
def test_a_broken_model_gets_an_answer_or_one_line(
    capsys: Capture, tmp_path: Path, models: Path, start: int, args: str
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    places = {"BAD": folder / "bad.gguf", "GOOD": models / "target.gguf", "OUT": tmp_path / "out.gguf"}
    places["FOLDER"] = folder
    refused = 0
    for label, content in islice(mutants(Model.read(models / "draft.gguf")), start, None, STEP):
        places["BAD"].write_bytes(content)
        done = command(capsys, *(places.get(arg, arg) for arg in args.split()))
        assert done.code in (0, 1, 2, 3), label
        if done.code in (1, 2):
            refused += 1
            assert done.err.startswith("paceline: "), label
            assert done.err.count("\n") == 1, label
            assert done.err[:-1].isprintable(), label
    assert refused or args.startswith("pairs")
