"""Where corpora are found, and what is said of those that cannot be used."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.toy import ToyTarget
from paceline.models.fingerprint import fingerprint
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.vocabulary import Vocab
from paceline.storage import corpora
from paceline.storage.corpora import (
    DATASTORE,
    MANIFEST,
    STATIC,
    Corpus,
    Manifest,
    corpora_folder,
    find_corpus,
    names,
    open_corpus,
)
from paceline.system.scratch import scratch_folder


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
        fingerprint=fingerprint(vocab),
        sources=({"path": "src", "files": 1, "documents": 2, "bytes": 40, "tokens": 12},),
        skipped={"empty": 1},
        created="2026-11-21T12:00:00+00:00",
        paceline="0.1.0",
    )
    (folder / STATIC).write_bytes(b"12345")
    (folder / DATASTORE).mkdir()
    (folder / MANIFEST).write_text(json.dumps(manifest.as_dict() | changes))
    return folder


def test_a_corpus_is_found_by_its_name_and_by_its_folder(home: Path, vocab: Vocab, tmp_path: Path) -> None:
    inside, outside = make(home / "mine", vocab), make(tmp_path / "elsewhere", vocab)
    for given, folder in (("mine", inside), (outside, outside), (str(outside), outside)):
        corpus = open_corpus(given, vocab)
        assert (corpus.static, corpus.datastore) == (folder / STATIC, folder / DATASTORE)
        assert corpus.manifest.sources[0]["path"] == "src"
        assert corpus.size == 5 + (folder / MANIFEST).stat().st_size


def test_a_folder_in_the_working_directory_does_not_hide_a_name(
    home: Path, vocab: Vocab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(home / "mine", vocab)
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_corpus("mine").folder == home / "mine"
    with pytest.raises(ModelError, match=r"mine/manifest.json: cannot be read"):
        find_corpus("./mine")


def test_a_corpus_has_what_it_was_built_with(home: Path, vocab: Vocab) -> None:
    corpus = open_corpus(make(home / "mine", vocab, kinds=["ngram"]), vocab)
    assert (corpus.static, corpus.datastore) == (home / "mine" / STATIC, None)


def test_an_unknown_name_is_answered_with_the_known_ones(home: Path, vocab: Vocab) -> None:
    with pytest.raises(UsageError, match="no corpus 'mine': make it with paceline corpus build mine"):
        find_corpus("mine")
    make(home / "b", vocab)
    make(home / "a", vocab)
    with pytest.raises(UsageError, match="no corpus 'mine': there are a, b"):
        find_corpus("mine")
    with pytest.raises(UsageError, match="no such folder"):
        find_corpus(home / "c")


@pytest.mark.parametrize("size", [5, 7])
def test_a_corpus_of_another_tokenizer_is_refused(home: Path, vocab: Vocab, size: int) -> None:
    make(home / "mine", vocab)
    with pytest.raises(VocabError, match=r"another tokenizer, of toy.gguf \(6 tokens, the target"):
        open_corpus("mine", ToyTarget(size).vocab)
    other = replace(vocab, text=lambda token: b"other")
    with pytest.raises(VocabError, match="build it again with --tokenizer"):
        open_corpus("mine", other)


@pytest.mark.parametrize("gone", [STATIC, DATASTORE])
def test_a_corpus_without_its_files_is_refused(home: Path, vocab: Vocab, gone: str) -> None:
    path = make(home / "mine", vocab) / gone
    path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(ModelError, match=rf"{gone}: is missing"):
        open_corpus("mine", vocab)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"version": "1"},
        {"kinds": ["magic"]},
        {"kinds": None},
        {"tokens": "many"},
        {"fingerprint": None},
        {"model": 3},
        {"sources": [{"path": "src"}]},
        {"sources": [3]},
        {"skipped": {"empty": "some"}},
        {"skipped": 3},
    ],
)
def test_a_damaged_manifest_is_refused(home: Path, vocab: Vocab, changes: dict[str, Any]) -> None:
    make(home / "mine", vocab, **changes)
    with pytest.raises(ModelError, match=r"manifest.json: is damaged; build the corpus again"):
        find_corpus("mine")


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"version": 1', b"\xff\xfe"])
def test_a_manifest_that_is_none_is_refused(home: Path, vocab: Vocab, text: bytes) -> None:
    (make(home / "mine", vocab) / MANIFEST).write_bytes(text)
    with pytest.raises(ModelError, match="is damaged"):
        find_corpus("mine")


def test_a_newer_corpus_is_refused_with_both_versions(home: Path, vocab: Vocab) -> None:
    make(home / "mine", vocab, version=2, surprise=True)
    with pytest.raises(ModelError, match="of version 2, and this Paceline reads up to 1: upgrade"):
        find_corpus("mine")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "..", "a b", "é", "x" * 65, "-x", "a\n"])
def test_names_that_are_no_plain_words_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="a corpus cannot be named"):
        corpora.check_name(name)


def test_names_are_those_of_folders_in_order_and_none_without_a_home(home: Path, vocab: Vocab) -> None:
    assert names() == []
    make(home / "b.2", vocab)
    make(home / "a-1", vocab)
    (home / ".hidden").mkdir()
    assert names() == ["a-1", "b.2"]
    assert corpora_folder() == home


def test_what_killed_builds_left_is_removed_and_a_corpus_gets_its_name_back(home: Path, vocab: Vocab) -> None:
    make(home / ".lost.old", vocab)
    make(home / ".paceline-0123456789abcdef.tmp", vocab)
    os.utime(home / ".paceline-0123456789abcdef.tmp", (0, 0))
    make(home / "kept", vocab)
    make(home / ".kept.old", vocab)
    (home / ".other.7.txt").mkdir()
    with scratch_folder(home) as busy:
        assert names() == ["kept", "lost"]
        assert sorted(path.name for path in home.iterdir()) == sorted(
            [".other.7.txt", busy.name, "kept", "lost"]
        )
    assert find_corpus("lost").manifest.name == ".lost.old"


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


def test_a_corpus_is_compared_by_what_it_is(home: Path, vocab: Vocab) -> None:
    assert find_corpus(make(home / "mine", vocab)) == Corpus(home / "mine", Manifest.read(home / "mine"))
