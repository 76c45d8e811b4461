"""The toy model as an engine: every command works on it, without a model file."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import command
from paceline.backends.toy import ToyTarget, parse_toy_reference
from paceline.speculative.errors import UsageError

CERTIFY = ("certify", "-m", "toy:", "--draft", "lookup", "--sequences", "2", "--samples", "200")
Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    "said",
    ["bad=1", "seed", "seed=x", "seed=-1", "noise=nan", "n_vocab=11", "n_vocab=1", "eos=99", "width=1e9"],
)
def test_a_setting_that_is_none_is_refused_by_name(said: str) -> None:
    with pytest.raises(UsageError, match="is no setting; write toy:seed=3"):
        parse_toy_reference(Path(f"toy:{said}"))


def test_settings_make_the_model() -> None:
    given = parse_toy_reference(Path("toy:seed=3,noise=0.5,n_vocab=5,eos=2"))
    assert given == {"seed": 3, "noise": 0.5, "n_vocab": 5, "eos": frozenset({2})}
    ids = {
        str(ToyTarget(**one).identity()) for one in ({}, {"seed": 1}, {"noise": 0.1}, {"eos": frozenset({1})})
    }
    assert len(ids) == 4


@pytest.mark.parametrize(
    "words",
    [
        ("run", "-m", "toy:", "0 1 2", "-n", "9"),
        ("run", "-m", "toy:", "-md", "toy:noise=0.3", "--json", "0 1 2", "-n", "9"),
        pytest.param(CERTIFY, marks=pytest.mark.slow),
        pytest.param(("doctor", "-m", "toy:", "--seconds", "0.5"), marks=pytest.mark.slow),
    ],
)
def test_commands_work_on_it(capsys: Capture, words: tuple[str, ...]) -> None:
    done = command(capsys, *words)
    assert done.code == 0, done.err
    assert done.out
