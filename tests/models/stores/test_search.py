"""Looking into folders that others have filled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paceline.models.stores.model_folder import BESIDE
from paceline.models.stores.reference import NO_MODEL
from paceline.models.stores.search import FolderSearch


def test_links_are_followed_and_known_by_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "c.gguf").touch()
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "d.gguf").symlink_to("c.gguf")
    a, b, c, d = FolderSearch().folder(tmp_path)
    assert (a.folder, b.folder, c.folder, d.folder) == (True, True, False, False)
    assert a.id == b.id != c.id == d.id


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    for name in ("a.txt", "b.GGUF", "c.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    assert [one.path.name for one in FolderSearch().folder(tmp_path, (".gguf",))] == [
        "b.GGUF",
        "c.gguf",
        "folder",
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    search = FolderSearch()
    assert search.folder(tmp_path) == []
    assert search.json(tmp_path / "m.gguf") is None
    assert len(search.notes) == 1


def test_what_is_no_folder_has_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    search = FolderSearch()
    assert search.folder(tmp_path / "file") == search.folder(tmp_path / "nowhere") == []
    assert search.notes == []


def test_downloads_and_searches_leave_out_the_same_files() -> None:
    assert set(BESIDE) == set(NO_MODEL)
