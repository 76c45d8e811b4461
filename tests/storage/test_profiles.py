"""Profiles: applied where no setting was given, and refused for another model or machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.loading import load
from paceline.plan import machine
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from paceline.storage import profiles
from paceline.storage.profiles import Profile

HERE = {"processor": "a processor", "cores": 2}
SETTINGS = {"drafters": ["lookup"], "n_draft": 5, "threads": 1, "cache_type": "q8_0"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made(name: str = "any", fingerprint: str = "f" * 64, **changes: object) -> Profile:
    profile = Profile(name, name, {"name": "tiny", "fingerprint": fingerprint}, HERE, SETTINGS)
    return replace(profile, **changes)  # type: ignore[arg-type]


def test_a_saved_profile_is_read_again_and_its_command_can_be_typed() -> None:
    made().save()
    assert list(profiles.every(pytest.fail)) == [made()]
    assert made().command == "--draft lookup --n-draft 5 --threads 1 --cache-type q8_0"


def test_settings_that_are_given_win_over_the_profile() -> None:
    given = LoadOptions.of("model.gguf", n_draft=9, threads=2)
    found = profiles.apply(given, made())
    assert (found.drafting.drafters, found.drafting.n_draft) == (("lookup",), 9)
    assert (found.engine.threads, found.engine.cache_type) == (2, "q8_0")
    assert profiles.apply(LoadOptions.of(drafters="suffix"), made()).drafting.drafters == ("suffix",)


def test_auto_takes_the_profile_for_any_task_or_the_only_one() -> None:
    for name in ("code", "any"):
        made(name).save()
    made("any", "e" * 64).save()
    assert profiles.choose("auto", "f" * 64, HERE, pytest.fail) == made("any")
    made("any").path.unlink()
    assert profiles.choose("auto", "f" * 64, HERE, pytest.fail) == made("code")
    made("json").save()
    assert profiles.choose("auto", "f" * 64, HERE, pytest.fail) is None  # which one?


@pytest.mark.parametrize(
    ("name", "fingerprint", "machine", "why"),
    [
        ("code", "f" * 64, HERE, "no profile"),
        ("any", "e" * 64, HERE, "is for the model tiny"),
        ("any", "f" * 64, {"processor": "another", "cores": 2}, "is for the machine a processor"),
    ],
)
def test_a_profile_of_another_model_or_machine_is_refused(
    name: str, fingerprint: str, machine: dict[str, object], why: str
) -> None:
    made().save()
    with pytest.raises(UsageError, match=why):
        profiles.choose(name, fingerprint, machine, pytest.fail)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 9}', json.dumps({"format": 1, "name": "x"}), '{"format": 1, "x": 1}']
)
def test_a_damaged_file_is_named_and_skipped(text: str, home: Path) -> None:
    made().save()
    path = home / "profiles" / "0.json"
    path.write_text(text)
    warnings: list[str] = []
    assert [one.name for one in profiles.every(warnings.append)] == ["any"]
    assert [str(path) in warning for warning in warnings] == [True]


@pytest.mark.parametrize(
    "changes",
    [{"name": "../x"}, {"name": "auto"}, {"settings": {"n_draft": 0}}, {"settings": {"n_drafts": 3}}],
)
def test_a_profile_with_invalid_settings_cannot_be_made(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        made(**changes)


def test_load_uses_the_profile_of_its_model(capfd: pytest.CaptureFixture[str]) -> None:
    with load("toy:", profile="auto") as llm:  # there is none yet
        fingerprint = llm.target.identity()["model"]
    made(fingerprint=fingerprint, machine=machine(), settings={"drafters": ["lookup"], "n_draft": 3}).save()
    with load("toy:", profile="auto") as llm:
        assert (llm.drafting.drafters, llm.drafting.n_draft) == (("lookup",), 3)
    assert "profile any: --draft lookup --n-draft 3" in capfd.readouterr().err
    with load("toy:") as llm:
        assert llm.drafting.drafters == ("auto",)
