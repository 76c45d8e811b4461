"""The examples run, and their outputs are consistent."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment

EXAMPLES = Path(__file__).parents[1] / "examples"
LAB = sorted(path.name for path in (EXAMPLES / "lab").glob("*.py"))
IDENTICAL = r"output identical: (yes|up to token \d+, a near-tie: .*|but for \d+ near-ties)$"


def example(name: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )


def test_the_example_of_other_engines_prints_commands_and_a_refusal_and_drafts() -> None:
    done = example("engines.py")
    assert (done.returncode, done.stderr) == (0, "")
    *commands, refused, steps, _ = done.stdout.splitlines()
    assert [line.split()[:2] for line in commands] == [["vllm", "serve"]] * 2 + [["sglang", "serve"]] * 2
    assert refused.startswith("refused: --speculative-accept-threshold-acc is made by Paceline")
    found = re.fullmatch(r"(\d+) steps for 210 tokens, (\d+) of (\d+) drafted tokens accepted", steps)
    assert found is not None
    taken, accepted, drafted = map(int, found.groups())
    assert taken + accepted in (210, 211)  # after the last draft the text may end before a token of its own
    assert 100 < accepted <= drafted


def test_the_example_of_the_python_api_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process: it has no option for threads, and two that wait for each other are slow when tests run
    # side by side.
    monkeypatch.setattr("paceline.hardware.threads.physical_cores", lambda: 1)
    runpy.run_path(str(EXAMPLES / "python_api.py"))
    assert re.search(r"^\d+ tokens/s, \d+\.\d\d tokens a step$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAB)
def test_a_script_of_the_lab_finds_its_outputs_identical(name: str) -> None:
    done = example(f"lab/{name}", "-n", "24", "-t", "1")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    identical = [line for line in lines if re.search(IDENTICAL, line) or "the same tokens" in line]
    assert len(identical) >= 2
    assert not [line for line in lines if "output identical: no" in line]


@pytest.mark.parametrize("name", LAB)
def test_too_few_tokens_are_refused(name: str) -> None:
    done = example(f"lab/{name}", "-n", "1")
    assert done.returncode == 2
    assert re.search(r"-n 1: must be at least \d+$", done.stderr)
