"""Locations of corpora, and errors for those that cannot be used."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.toy import ToyTarget
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.vocabulary import Vocab
from paceline.storage import corpora
from paceline.storage.corpora import (
    DATASTORE,
    MANIFEST,
    STATIC,
    Manifest,
    SourceCounts,
    find_corpus,
    names,
)
from paceline.system.shutdown import scratch_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "corpora"


@pytest.fixture
def vocab() -> Vocab:
    return ToyTarget(6).vocab


def make(folder: Path, vocab: Vocab, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    manifest = Manifest(
        name=folder.name,
        kinds=("ngram", "datastore"),
        tokens=12,
        documents=2,
        model="toy.gguf",
        n_vocab=vocab.size,
        fingerprint=vocab.fingerprint,
        sources=(SourceCounts("src", files=1, documents=2, bytes=40, tokens=12),),
        skipped={"empty": 1},
        created="2026-11-21T12:00:00+00:00",
        paceline="0.1.0",
    )
    (folder / STATIC).write_bytes(b"12345")
    (folder / DATASTORE).mkdir()
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest) | changes))
    return folder


def test_a_corpus_is_found_by_its_name_and_by_its_folder(home: Path, vocab: Vocab, tmp_path: Path) -> None:
    inside, outside = make(home / "mine", vocab), make(tmp_path / "elsewhere", vocab)
    for given, folder in (("mine", inside), (outside, outside), (str(outside), outside)):
        corpus = find_corpus(given, vocab)
        assert (corpus.static, corpus.datastore) == (folder / STATIC, folder / DATASTORE)
        assert corpus.manifest.sources[0].path == "src"
        assert corpus.size == 5 + (folder / MANIFEST).stat().st_size


@pytest.mark.parametrize("size", [5, 7])
def test_a_corpus_of_another_tokenizer_is_refused(home: Path, vocab: Vocab, size: int) -> None:
    make(home / "mine", vocab)
    with pytest.raises(VocabError, match=r"another tokenizer, of toy.gguf \(6 tokens, the target"):
        find_corpus("mine", ToyTarget(size).vocab)
    other = replace(vocab, text=lambda token: b"other")
    with pytest.raises(VocabError, match="build it again with -m"):
        find_corpus("mine", other)


@pytest.mark.parametrize(
    "damage",
    [
        *(b"", b"{}", b"[]", b'{"version": 1', b"\xff\xfe", b'{"version": 2}'),
        b'{"version": 1, "kinds": ["magic"]}',
        {"tokens": "12"}, {"documents": None}, {"n_vocab": 6.5}, {"kinds": [["ngram"]]}, {"model": 1},
        {"skipped": []}, {"skipped": {"empty": "1"}}, {"sources": ["src"]}, {"sources": [{"path": "src"}]},
    ],
)  # fmt: skip
def test_damaged_manifest_is_refused(home: Path, vocab: Vocab, damage: bytes | dict[str, Any]) -> None:
    folder = make(home / "mine", vocab, **(damage if isinstance(damage, dict) else {}))
    if isinstance(damage, bytes):
        (folder / MANIFEST).write_bytes(damage)
    with pytest.raises(ModelError, match="is damaged, or of another version"):
        find_corpus("mine")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "é", "x" * 65, "a\n"])
def test_names_that_are_no_plain_words_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a corpus cannot be named"):
        corpora.check_name(name)


def test_what_killed_builds_left_is_removed(home: Path, vocab: Vocab) -> None:
    make(home / ".paceline-0123456789abcdef.tmp", vocab)
    os.utime(home / ".paceline-0123456789abcdef.tmp", (0, 0))
    make(home / "kept", vocab)
    (home / ".other.7.txt").mkdir()
    with scratch_folder(home) as busy:
        assert names() == ["kept"]
        assert {path.name for path in home.iterdir()} == {".other.7.txt", busy.name, "kept"}


def test_a_replacement_that_fails_leaves_the_old_one(
    home: Path, vocab: Vocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(home / "mine", vocab, tokens=1)
    with pytest.raises(FileNotFoundError):
        corpora.replace(home / "missing", home / "mine")
    assert find_corpus("mine").manifest.tokens == 1
    corpora.replace(make(home / "new", vocab, tokens=2), home / "mine")
    assert find_corpus("mine").manifest.tokens == 2
    assert [path.name for path in home.iterdir()] == ["mine"]
