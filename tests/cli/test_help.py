"""--help at 80 columns, and the environment variables it speaks of."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from command_line import command, run
from paceline.cli import run as run_command
from paceline.config import Drafting
from paceline.speculative.sampling import Sampling

Capture = pytest.CaptureFixture[str]


def help_of(capsys: Capture, *args: str) -> list[str]:
    done = command(capsys, *args, "--help", COLUMNS="80")
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


COMMANDS = [
    *([], ["run"], ["chat"], ["bench"], ["bench", "show"], ["corpus"], ["corpus", "build"], ["replay"]),
    *(["doctor"], ["pull"], ["pairs"], ["serve"], ["zoo"], ["zoo", "inflate"]),
]


@pytest.mark.parametrize("args", COMMANDS)
def test_help_fits_80_columns_and_names_no_python_types(capsys: Capture, args: list[str]) -> None:
    lines = help_of(capsys, *args)
    assert lines[0].startswith(f"Usage: paceline {' '.join(args)}".rstrip())
    assert max(map(len, lines)) <= 80
    assert not any(sign in line for line in lines for sign in ("<str>", "<int>", "{", "env var"))


def test_help_of_run_groups_its_options(capsys: Capture) -> None:
    lines = help_of(capsys, "run")
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    names = "Prompt: Models: Generation: Sampling: Grammar: Drafting: Output: Options:"
    assert " ".join(headings) == names
    assert "  -n, --n-predict N  Most tokens to generate.  [default: 256; x>=1]" in lines
    assert "  --top-p X              Top-p (nucleus) sampling; 1: off.  [default: 1]" in lines


@pytest.mark.parametrize("args", [[], ["zoo"]])
def test_without_a_command_the_help_goes_to_stderr_with_code_2(capsys: Capture, args: list[str]) -> None:
    done = command(capsys, *args)
    assert (done.code, done.out) == (2, "")
    assert done.err == command(capsys, *args, "--help").out
    assert done.err.startswith("Usage: paceline ")


def test_the_environment_sets_options_and_the_command_line_wins(capsys: Capture, models: Path) -> None:
    target = models / "target.gguf"
    short = run(capsys, target, "hi", "--json", PACELINE_N_PREDICT="3", PACELINE_SEED="7").json
    assert (short["n_tokens"], short["provenance"]["request"]["seed"]) == (3, 7)
    long = run(capsys, target, "hi", "--json", "-n", "5", PACELINE_N_PREDICT="3", PACELINE_SEED="7").json
    assert (long["n_tokens"], long["provenance"]["request"]["seed"]) == (5, 7)
    assert run(capsys, target, "hi", "-n", "2", PACELINE_JSON="1").out.startswith('{"text": ')
    assert not run(capsys, target, "hi", "-n", "2", "--no-json", PACELINE_JSON="1").out.startswith("{")


def test_a_bad_value_of_the_environment_is_refused_by_its_name(capsys: Capture, models: Path) -> None:
    done = run(capsys, models / "target.gguf", "hi", PACELINE_TOP_P="most")
    done.refused(2, "'--top-p'", "(from PACELINE_TOP_P)")


def test_the_defaults_of_the_command_line_are_those_of_the_library() -> None:
    """The command line spells them out only so that `--help` imports nothing."""
    options = {name: p.default for name, p in inspect.signature(run_command.run).parameters.items()}
    drafting, sampling = Drafting(), Sampling()
    for name in ("p_min", "ngram_min", "ngram_max", "cross_vocab", "verify", "min_draft_tokens"):
        assert options[name] == getattr(drafting, name), name
    for left_open in ("draft", "policy", "n_draft", "width", "p_split"):
        assert options[left_open] is None
    assert options["draft_temp"] == drafting.temperature
    assert options["temperature"] == sampling.temperature
    for name in set(vars(sampling)) - {"temperature", "logit_bias"}:
        assert options[name] == getattr(sampling, name), name
