from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from hub_files import CONFIG, write_folder, write_json
from paceline import zoo
from paceline.core.errors import ModelError
from paceline.machine.models import facts_cache
from paceline.machine.models.facts_cache import FactsCache
from paceline.machine.models.header import read


class Reads:
    """Which files were read, in place of the cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        monkeypatch.setattr(facts_cache, "read", self._read)

    def _read(self, path: Path, *, tokens: bool) -> Any:
        self.paths.append(path.name)
        return read(path, tokens=tokens)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "facts.json"


def test_the_second_run_reads_no_header(place: Path, reads: Reads, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Qwen2.5-0.5B")
    for _ in range(2):
        with FactsCache(place) as cache:
            assert cache.read(zoo.draft_path()) == read(zoo.draft_path(), tokens=False)
            assert cache.read(zoo.draft_path()) == read(zoo.draft_path(), tokens=False)
            assert cache.read(folder) == read(folder, tokens=False)
    assert reads.paths == ["paceline-draft.gguf", "Qwen2.5-0.5B"]


def test_what_changed_is_read_again(place: Path, reads: Reads, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "m.gguf", layers=1, vocab_only=True)
    with FactsCache(place) as cache:
        assert cache.read(path).n_layers == 1
    before = path.stat()
    write_llama(path, layers=2, vocab_only=True)  # of the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    with FactsCache(place) as cache:
        assert cache.read(path).n_layers == 2
    folder = write_folder(tmp_path / "m")
    with FactsCache(place) as cache:
        assert cache.read(folder).n_layers == 24
    os.utime(write_json(folder / "config.json", CONFIG | {"num_hidden_layers": 25}), ns=(1, 1))
    with FactsCache(place) as cache:
        assert cache.read(folder).n_layers == 25
    assert reads.paths == ["m.gguf", "m.gguf", "m", "m"]


def test_what_is_gone_is_dropped_when_something_new_comes(place: Path, tmp_path: Path) -> None:
    paths = [write_llama(tmp_path / f"{name}.gguf", vocab_only=True) for name in "abc"]
    with FactsCache(place) as cache:
        for path in paths[:2]:
            cache.read(path)
    paths[0].unlink()
    with FactsCache(place) as cache:
        cache.read(paths[2])
    assert set(json.loads(place.read_text())["models"]) == {str(path) for path in paths[1:]}


def test_what_cannot_be_read_is_no_entry(place: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with FactsCache(place) as cache, pytest.raises(ModelError):
        cache.read(tmp_path / "bad.gguf")
    assert not place.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format": 2, "models": []}',
        b'{"format": 0, "models": {}}',
        b"[" * 10_000,
    ],
)
def test_a_cache_that_is_none_is_made_anew(place: Path, content: bytes) -> None:
    place.parent.mkdir()
    place.write_bytes(content)
    with FactsCache(place) as cache:
        cache.read(zoo.draft_path())
    assert list(json.loads(place.read_bytes())["models"]) == [str(zoo.draft_path())]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("files", []), ("files", [3]), ("files", "x"), ("name", None), ("n_ctx", "8"), ("n_ctx", True)),
        *(("parameters", "many"), ("chat_template", 3), ("kv_bytes", 1.5), ("pooling", None)),
    ],
)
def test_a_damaged_entry_is_read_again(place: Path, reads: Reads, field: str, value: Any) -> None:
    with FactsCache(place) as cache:
        expected = cache.read(zoo.draft_path())
    said = json.loads(place.read_text())
    said["models"][str(zoo.draft_path())]["facts"][field] = value
    place.write_text(json.dumps(said))
    with FactsCache(place) as cache:
        assert cache.read(zoo.draft_path()) == expected
    assert len(reads.paths) == 2


def test_a_place_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with FactsCache(tmp_path / "file" / "facts.json") as cache:
        assert cache.read(zoo.draft_path()).arch == "llama"
    (tmp_path / "folder" / "facts.json").mkdir(parents=True)
    with FactsCache(tmp_path / "folder" / "facts.json") as cache:
        assert cache.read(zoo.draft_path()).arch == "llama"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["facts.json"]


def test_several_at_once_lose_nothing_that_was_written_and_break_nothing(place: Path, tmp_path: Path) -> None:
    paths = [write_llama(tmp_path / f"{i}.gguf", vocab_only=True) for i in range(8)]

    def run(path: Path) -> str:
        with FactsCache(place) as cache:
            cache.read(path)
        return str(json.loads(place.read_text())["format"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(run, paths)) == {str(facts_cache.FORMAT)}
    with FactsCache(place) as cache, ThreadPoolExecutor(8) as pool:
        assert [facts.path for facts in pool.map(cache.read, paths)] == paths
    assert set(json.loads(place.read_text())["models"]) == {str(path) for path in paths}
    assert [path.name for path in place.parent.iterdir()] == ["facts.json"]


def test_of_more_than_it_may_hold_the_newest_stay(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_llama(tmp_path / f"{i}.gguf", vocab_only=True) for i in range(8)]
    with FactsCache(place) as cache:
        for path in paths[:7]:
            cache.read(path)
    monkeypatch.setattr(facts_cache, "MAX_SIZE", place.stat().st_size)
    with FactsCache(place) as cache:
        cache.read(paths[7])
    assert list(json.loads(place.read_text())["models"]) == [str(path) for path in paths[4:]]
    monkeypatch.setattr(facts_cache, "MAX_SIZE", 100)
    with FactsCache(place) as cache:
        cache.read(paths[0])
    assert json.loads(place.read_text())["models"] == {}


def test_it_lies_in_the_users_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    with FactsCache() as cache:
        cache.read(zoo.draft_path())
    assert (tmp_path / "home" / "facts.json").exists()
