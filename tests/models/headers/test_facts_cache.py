"""A header is read once, until its file changes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from hub_files import CONFIG, write_folder, write_json
from paceline.models import zoo
from paceline.models.headers import facts_cache
from paceline.models.headers.facts_cache import read_cached
from paceline.models.headers.header import read
from paceline.speculative.errors import ModelError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which files were read, in place of the cache."""
    paths: list[str] = []

    def noted(path: Path, *, tokens: bool) -> Any:
        paths.append(path.name)
        return read(path, tokens=tokens)

    monkeypatch.setattr(facts_cache, "read", noted)
    return paths


def test_the_second_time_reads_no_header(reads: list[str], tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Qwen2.5-0.5B")
    for _ in range(2):
        assert read_cached(zoo.draft_path()) == read(zoo.draft_path(), tokens=False)
        assert read_cached(folder) == read(folder, tokens=False)
    assert reads == ["paceline-draft.gguf", "Qwen2.5-0.5B"]


def test_what_changed_is_read_again(reads: list[str], tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", layers=1, vocab_only=True)
    assert read_cached(path).n_layers == 1
    before = path.stat()
    write_llama(path, layers=2, vocab_only=True)  # of the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    assert read_cached(path).n_layers == 2
    folder = write_folder(tmp_path / "m")
    assert read_cached(folder).n_layers == 24
    os.utime(write_json(folder / "config.json", CONFIG | {"num_hidden_layers": 25}), ns=(1, 1))
    assert read_cached(folder).n_layers == 25
    assert reads == ["m.gguf", "m.gguf", "m", "m"]


def test_what_cannot_be_read_is_not_kept(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError):
        read_cached(tmp_path / "bad.gguf")
    assert not home.exists()


@pytest.mark.parametrize("damage", [("", ""), ('"files"', '"field"'), ("[", "{"), ('"arch"', '"ark"')])
def test_a_damaged_entry_is_read_again(home: Path, reads: list[str], damage: tuple[str, str]) -> None:
    expected = read_cached(zoo.draft_path())
    (entry,) = (home / "facts").iterdir()
    entry.write_text(entry.read_text().replace(*damage) if damage[0] else "")
    assert read_cached(zoo.draft_path()) == expected
    assert len(reads) == 2


def test_a_place_that_cannot_be_written_does_no_harm(home: Path) -> None:
    home.touch()
    assert read_cached(zoo.draft_path()).arch == "llama"


def test_several_at_once_break_nothing(reads: list[str], tmp_path: Path) -> None:
    paths = [write_llama(tmp_path / f"{i}.gguf", vocab_only=True) for i in range(8)]
    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            assert [facts.path for facts in pool.map(read_cached, paths)] == paths
    assert len(reads) == 8
