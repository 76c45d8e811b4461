"""`paceline tune` and `paceline profile`: what they print, save, use and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import command
from paceline.plan import machine
from paceline.storage.profiles import Profile
from paceline.system.home import file_fingerprint

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def target(models: Path) -> str:
    return f"{models}/target.gguf"


@pytest.fixture
def suite(tmp_path: Path) -> str:
    path = tmp_path / "suite.jsonl"
    lines = [{"id": f"{n}", "prompt": "ab " * (n + 4), "max_tokens": 8} for n in range(7)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_a_sweep_prints_a_bar_for_each_point_and_its_record(
    target: str, suite: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "record.jsonl"
    args = [
        "tune",
        "-m",
        target,
        "-t",
        "1",
        "--suite",
        suite,
        "--sweep",
        "ngram_min=1,2",
        "--minutes",
        "0.05",
    ]
    printed = command(capsys, *args, "-o", str(out)).out
    for text in ("sweep ngram_min", "lookup:ngram_min=1", "lookup:ngram_min=2", "█", "plain", str(out)):
        assert text in printed
    assert max(map(len, printed.splitlines())) <= 120
    command(capsys, *args, "-o", str(out)).refused(2, "is not empty")
    command(capsys, "tune", "--continue", str(out), "--minutes", "1").refused(2, "its own settings")
    command(capsys, "tune", "-m", target, "--task", "poetry").refused(2, "poetry")


def test_a_search_without_a_draft_ends_with_its_choice(target: str, suite: str, capsys: Capture) -> None:
    args = ["tune", "-m", target, "-t", "1", "--suite", suite, "--minutes", "0.1", "--no-save"]
    printed = command(capsys, *args).out
    assert "chosen: " in printed
    assert "no profile is saved" in printed
    assert command(capsys, "profile", "list", "--json").json == {"profiles": []}


def test_try_without_a_draft_here_measures_copies_and_ends_with_its_choice(
    target: str, capsys: Capture
) -> None:
    done = command(capsys, "try", target, "--minutes", "0.05")
    assert "none here" in done.err
    assert done.out.startswith("chosen: ")
    assert done.out.count("\n") <= 3


def test_a_profile_is_used_by_run_and_can_be_listed_shown_and_removed(target: str, capsys: Capture) -> None:
    identity = {"name": "tiny", "fingerprint": file_fingerprint(Path(target))}
    profile = Profile("any", "any", identity, machine(), {"drafters": ["lookup"], "n_draft": 3})
    profile.save()
    run = ["run", "-m", target, "-p", "ab ab ab", "-n", "8", "--json"]
    for options, drafters in (
        ([], ["lookup"]),
        (["--profile", "none"], ["auto"]),
        (["--draft", "suffix"], ["suffix"]),  # given: the profile is not used
        (["--remember"], ["auto"]),
        (["--profile", "any", "--draft", "suffix"], ["suffix"]),
    ):
        done = command(capsys, *run, *options)
        assert done.json["provenance"]["drafting"]["drafters"] == drafters, options
        used = "profile any: --draft lookup --n-draft 3" in done.err
        assert used == (options in ([], ["--profile", "any", "--draft", "suffix"]))
    command(capsys, *run, "--profile", "nobody").refused(2, "no profile 'nobody'")
    assert "lookup" in command(capsys, "profile", "list").out
    shown = command(capsys, "profile", "show", "any", "-m", target).out
    assert json.loads(shown)["settings"]["n_draft"] == 3
    command(capsys, "profile", "rm", "any")
    assert not profile.path.exists()
    command(capsys, "profile", "rm", "any").refused(2, "no profile 'any'")
