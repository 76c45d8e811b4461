"""Location of user data: the platform's place or a configured one."""

import json
from pathlib import Path

import platformdirs
import pytest

from paceline.system.home import caches, home, load_record, record_path, write_record


def test_the_environment_names_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.setenv("PACELINE_HOME", "~/here")
    assert home() == Path.home() / "here"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_HOME", "here")
    assert home() == tmp_path / "here"
    assert not home().exists()


def test_what_can_be_made_again_lies_in_the_platforms_cache_or_in_the_place_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = platformdirs.user_cache_path("paceline")
    monkeypatch.delenv("PACELINE_HOME", raising=False)
    assert caches() == (usual,)
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert caches() == (tmp_path, usual)


KEY = {"model": "abc", "threads": 2}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    assert write_record("speed", KEY, {"rate": 2.5}, pytest.fail, "")
    return record_path("speed", KEY)


def test_what_was_measured_comes_back_with_its_key_alone(kept: Path) -> None:
    assert load_record("speed", KEY, lambda said: said["rate"]) == 2.5
    for folder, key in (("costs", KEY), ("speed", KEY | {"threads": 4})):
        assert load_record(folder, key, lambda said: said, pytest.fail) is None


@pytest.mark.parametrize(
    "damage",
    [
        *("", "{", "[]", "3", "{}", "[" * 9999, '{"format": 1}'),
        json.dumps({"format": 0, "key": KEY}),
        json.dumps({"format": 1, "key": {}}),
        json.dumps({"format": 1, "key": KEY}),
    ],
)
def test_what_is_damaged_or_of_something_else_is_told(kept: Path, damage: str) -> None:
    kept.write_text(damage)
    told: list[str] = []
    assert load_record("speed", KEY, lambda said: said["rate"], told.append, "it is measured again") is None
    assert told == [f"{kept}: is damaged, or of another version; it is measured again"]


def test_a_disk_that_refuses_is_told(kept: Path) -> None:
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("a file, where a folder should be")
    said: list[str] = []
    assert not write_record("speed", KEY, {}, said.append, "it is measured again")
    assert said[0].startswith(f"{kept}: cannot be written (")
    assert said[0].endswith("); it is measured again")
