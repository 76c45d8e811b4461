"""--help at 80 columns, and the environment variables it speaks of."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import typer

from command_line import command, run
from paceline.cli.app import app
from paceline.cli.groups import DRAFTING_OPTIONS
from paceline.settings import Drafting

Capture = pytest.CaptureFixture[str]


def help_of(capsys: Capture, *args: str, option: str = "--help") -> list[str]:
    done = command(capsys, *args, option, COLUMNS="80")
    assert (done.code, done.err) == (0, "")
    return done.out.splitlines()


COMMANDS = [
    *([], ["run"], ["chat"], ["bench"], ["corpus"], ["corpus", "build"], ["replay"]),
    *(["report"], ["doctor"], ["pull"], ["pairs"], ["serve"], ["zoo"], ["certify"], ["train"]),
    *(["export"], ["import"], ["tune"], ["try"], ["profile", "list"]),
]


@pytest.mark.parametrize("args", COMMANDS)
def test_help_fits_80_columns_and_names_no_python_types(capsys: Capture, args: list[str]) -> None:
    lines = help_of(capsys, *args)
    assert lines[0].startswith(f"Usage: paceline {' '.join(args)}".rstrip())
    if any("more options: " in line for line in lines):
        lines += help_of(capsys, *args, option="--help-all")
    assert max(map(len, lines)) <= 80
    assert not any(sign in line for line in lines for sign in ("<str>", "<int>", "{", "env var"))


@pytest.mark.parametrize("name", ["run", "chat", "serve"])
def test_help_is_one_screen_with_three_examples(capsys: Capture, name: str) -> None:
    lines = help_of(capsys, name)
    examples = [line for line in lines if line.startswith(f"  paceline {name} -m ")]
    assert (len(examples), len(lines) <= 40) == (3, True)
    shown = {word for line in lines for word in line.split() if word.startswith("--")}
    everything = "\n".join(help_of(capsys, name, option="--help-all"))
    hidden = {option for option in options_of(name) if option not in shown}
    assert all(option in everything for option in hidden)
    assert f"  {len(hidden)} more options: paceline {name} --help-all" in lines


def options_of(name: str) -> list[str]:
    """The long names of a command's options."""
    group = typer.main.get_command(app)
    return [param.opts[-1] for param in group.commands[name].params if param.opts[0].startswith("-")]  # type: ignore[attr-defined]


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


@pytest.mark.parametrize("name", ["run", "chat", "serve", "bench", "doctor", "certify", "replay"])
def test_the_environment_sets_all_but_prompts_and_lists(name: str) -> None:
    """As docs/run.md promises."""
    command_ = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    unset = {param.opts[-1] for param in command_.params if not (param.envvar or param.multiple)}
    arguments = {"files", "rest", "prompt", "--help-all"}
    assert unset <= arguments | {"--prompt", "--file", "--messages", "--prompts", "--out", "--continue"}


def test_a_bad_value_of_the_environment_is_refused_by_its_name(capsys: Capture, models: Path) -> None:
    done = run(capsys, models / "target.gguf", "hi", PACELINE_TOP_P="most")
    done.refused(2, "'--top-p'", "(from PACELINE_TOP_P)")


def test_a_drafting_setting_has_one_name_everywhere() -> None:
    """On the command line, in --methods and in Python (a field of Drafting)."""
    rows = {row.name: str(vars(get_args(row.annotation)[1])) for row in DRAFTING_OPTIONS.parameters}
    assert [name for name, option in rows.items() if f"'--{name.replace('_', '-')}" not in option] == []
    assert {f.name for f in fields(Drafting)} - {"drafters"} == rows.keys() - {"exact_greedy"}
