"""Where a user's data is: the platform's place, or the one that was named."""

from pathlib import Path

import platformdirs
import pytest

from paceline.machine.home import home


def test_the_environment_names_another_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    assert home() == tmp_path
    monkeypatch.setenv("PACELINE_HOME", "~/here")
    assert home() == Path.home() / "here"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACELINE_HOME", "here")
    assert home() == tmp_path / "here"
    assert not home().exists()


@pytest.mark.parametrize("given", [None, ""])
def test_without_it_the_platforms_place_is_taken(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if given is None:
        monkeypatch.delenv("PACELINE_HOME", raising=False)
    else:
        monkeypatch.setenv("PACELINE_HOME", given)
    assert home() == platformdirs.user_data_path("paceline")
