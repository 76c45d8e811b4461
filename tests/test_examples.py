"""The examples run, and their outputs are consistent."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment
from paceline.speculative import speedup_formulas as theory

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


def lab(name: str) -> list[str]:
    """Return the lines that a script of the lab prints for few tokens."""
    done = example(f"lab/{name}", "-n", "24", "-t", "1")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def table(lines: list[str], heading: str) -> list[list[str]]:
    """Return the rows below a table's heading; a row begins with a number."""
    at = next(i for i, line in enumerate(lines) if re.match(heading, line)) + 1
    rows = []
    for line in lines[at:]:
        if not re.match(r" *\d", line):
            break
        rows.append(line.split())
    return rows


@pytest.mark.slow
def test_plain_decoding_takes_one_pass_a_token_and_needs_no_cache_to_say_the_same() -> None:
    lines = lab("baseline_autoregressive.py")
    for model in ("toy model", "embedded model"):
        assert f"{model}: 24 tokens in 24 passes, 1.00 tokens a pass" in lines
    assert any(re.match(r"  without a cache: the same tokens in ", line) for line in lines)
    assert "  llm.generate(): the same tokens" in lines


@pytest.mark.slow
def test_theory_stands_beside_what_was_measured_for_every_draft_length() -> None:
    lines = lab("optimized_speculative.py")
    told = next(line for line in lines if line.startswith("draft model, always K tokens"))
    a = float(told.rpartition(" ")[2])
    timed = table(lines, r" *K +c +v ")
    assert [row[0] for row in timed] == [f"{k}" for k in range(2, 17)]
    for k, c, v, _, leviathan, real, *_ in timed:  # from figures that were printed with two places
        predicted = theory.speedup(a, int(k), float(c), float(v))
        assert float(real) == pytest.approx(predicted, rel=0.15, abs=0.01)
        assert float(leviathan) == pytest.approx(theory.speedup(a, int(k), float(c)), rel=0.15, abs=0.01)
    # The toy, three methods, all lengths together.
    assert len([line for line in lines if re.search(IDENTICAL, line)]) == 5


@pytest.mark.slow
def test_drafts_are_compared_and_a_copy_of_the_target_is_always_right() -> None:
    lines = lab("draft_models.py")
    rates = []
    for name in ("draft F16", "draft Q8_0", "draft Q4_0", "the target itself"):
        row, said, why = (line.removeprefix(name) for line in lines if line.startswith(name))
        assert re.search(IDENTICAL, said) or re.search(r"output identical: K = \d+ up to token", said)
        assert re.match(r": (no K pays: |K = \d pays: )", why)
        rates.append(float(row.split()[0]))
    assert rates[-1] == max(rates) > 0.9
    assert any(line.startswith("measured best: ") for line in lines)


@pytest.mark.parametrize("name", LAB)
def test_too_few_tokens_are_refused(name: str) -> None:
    done = example(f"lab/{name}", "-n", "1")
    assert done.returncode == 2
    assert re.search(r"-n 1: must be at least \d+$", done.stderr)
