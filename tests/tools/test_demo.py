"""Commands of `make demo`, with and without a real model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from paceline.models import zoo
from paceline.speculative.errors import UsageError
from tools import demo

Capture = pytest.CaptureFixture[str]
STAND_IN = """
import json, sys
from pathlib import Path
with open({asked!r}, "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if sys.argv[1] == "inflate":
    Path(sys.argv[2]).touch()
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that the demo has given, a line each, to a program that obeys none."""
    (tmp_path / "program.py").write_text(STAND_IN.format(asked=str(tmp_path / "asked")))
    program = (sys.executable, str(tmp_path / "program.py"))
    monkeypatch.setattr(demo, "PACELINE", program)
    monkeypatch.setattr(demo, "INFLATE", (*program, "inflate"))
    monkeypatch.setattr(demo, "BUILD", tmp_path / "build")
    return tmp_path / "asked"


def commands(asked: Path) -> list[list[str]]:
    return [json.loads(line) for line in asked.read_text().splitlines()]


def test_the_real_model_is_inflated_once_and_asked_through_its_template(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source.gguf"
    source.touch()
    monkeypatch.setattr(demo, "file_of", lambda name: {"zoo:smollm2": source}[name])
    assert (demo.main(), demo.main()) == (0, 0)
    made, first, second = commands(asked)
    model = str(tmp_path / "build" / "demo-smollm2-360M-BF16.gguf")
    assert made[:4] == ["inflate", model, "--from", str(source)]
    assert first == second
    assert first[:2] == ["run", "--compare"]
    assert {"--chat", model} <= set(first)


def test_without_it_the_embedded_pair_goes_on_and_says_so(
    asked: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    def missing(_name: str) -> Path:
        raise UsageError("zoo:smollm2 is not on this machine: pip install it")

    monkeypatch.setattr(demo, "file_of", missing)
    assert demo.main() == 0
    made, run = commands(asked)
    assert str(zoo.target_path()) in made
    assert str(zoo.draft_path()) in run
    assert "demo: zoo:smollm2 is not on this machine: pip install it" in capfd.readouterr().err
