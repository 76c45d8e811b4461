"""Models found in a folder by their names, and folders with link cycles, pipes, or without access."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.models.stores.search import FolderSearch, walk


def look(root: Path) -> tuple[list[str], list[str]]:
    """The models, by their paths below root, and the notes."""
    search = FolderSearch()
    return [str(path.relative_to(root)) for path in walk(root, search)], search.notes


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_split_model_is_one_model_and_a_missing_first_part_a_note(tmp_path: Path) -> None:
    for name in ("m-00001-of-00002", "m-00002-of-00002", "n-00002-of-00002"):
        put(tmp_path / f"{name}.gguf")
    note = f"{tmp_path}/n-00002-of-00002.gguf: is a part of a model whose first part is missing"
    assert look(tmp_path) == (["m-00001-of-00002.gguf"], [note])


def test_links_between_folders_end(tmp_path: Path) -> None:
    folder = put(tmp_path / "z/m.gguf").parent
    (folder / "up").symlink_to(tmp_path)
    (folder / "self").symlink_to("self")
    for early in ("again", "Another"):
        (tmp_path / early).symlink_to(folder)
    for left_alone in (".hidden", "datasets--a--b"):
        put(tmp_path / left_alone / "m.gguf")
    assert look(tmp_path) == (["z/m.gguf"], [])


def test_closed_folder_is_one_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "open/m.gguf")
    put(tmp_path / "closed/m.gguf")
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", guarded)
    note = f"{tmp_path}/closed: cannot be looked into (Permission denied)"
    assert look(tmp_path) == (["open/m.gguf"], [note])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    search = FolderSearch()
    assert search.folder(tmp_path) == []
    assert search.json(tmp_path / "m.gguf") is None
    assert len(search.notes) == 1
