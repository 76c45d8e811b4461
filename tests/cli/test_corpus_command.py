"""`paceline corpus`: what it prints, where it stops, and what it leaves on the disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command
from paceline.drafters.suffix_array import SuffixArray

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a.py").write_text("def add(first, second):\n    return first + second\n")
    (folder / "b.sql").write_text("select name from people;\n")
    (folder / "c.bin").write_bytes(b"\0\1")
    return folder


def paceline(capsys: Capture, home: Path, *args: str | Path) -> Done:
    return command(capsys, "corpus", *args, PACELINE_HOME=str(home))


def left(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "corpora").iterdir())


def test_build_prints_the_corpus_and_says_what_it_skipped(capsys: Capture, home: Path, source: Path) -> None:
    done = paceline(capsys, home, "build", "mine", "--from", source)
    assert (done.code, done.err) == (0, f"skipped, binary: 1 ({source / 'c.bin'})\n")
    facts = dict(line.split("  ", 1) for line in done.out.split("\n\n")[0].splitlines())
    assert facts["name          ".rstrip()].strip() == "mine"
    table = done.out.split("\n\n")[1].splitlines()
    assert table[0].split() == ["source", "files", "documents", "bytes", "tokens"]
    assert table[1].split()[:4] == [str(source), "2", "2", "75"]
    assert paceline(capsys, home, "show", "mine").out == done.out
    shown = paceline(capsys, home, "show", "mine", "--json").json
    store = SuffixArray(shown["datastore"])
    assert (store.tokens, store.n_vocab) == (shown["tokens"], 8192)
    store.close()
    assert json.loads(paceline(capsys, home, "list", "--json").out) == [shown]


def test_paths_may_be_given_in_every_way(capsys: Capture, home: Path, source: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps({"prompt": "q", "completion": "an answer of words"}))
    args = ("build", "mine", "--from", source / "a.py", source / "b.sql", "--from-log", log, "--json")
    built = paceline(capsys, home, *args).json
    assert [source["path"] for source in built["sources"]] == [
        str(source / "a.py"),
        str(source / "b.sql"),
        str(log),
    ]
    assert built["documents"] == 4
    assert paceline(capsys, home, *args, "--answers-only").json["documents"] == 3
    only = paceline(
        capsys, home, "build", "mine", source, "--glob", "*.sql", "--kinds", "datastore", "--json"
    )
    assert (only.json["documents"], only.json["static"]) == (1, None)


def test_list_shows_damaged_corpora_with_the_others(capsys: Capture, home: Path, source: Path) -> None:
    for name in ("one", "two"):
        paceline(capsys, home, "build", name, "--from", source)
    (home / "corpora" / "two" / "manifest.json").write_text("{")
    done = paceline(capsys, home, "list")
    header, one, two = done.out.splitlines()
    assert (done.code, header.split()[0]) == (0, "name")
    assert one.split()[0] == "one"
    assert "ngram,datastore" in one
    assert two.split()[0] == "two"
    assert "manifest.json: is damaged" in two
    records: Any = json.loads(paceline(capsys, home, "list", "--json").out)
    assert [record.get("error") is None for record in records] == [True, False]
    paceline(capsys, home, "show", "two").refused(1, "is damaged")


def test_rm_removes_one_corpus_and_nothing_else(capsys: Capture, home: Path, source: Path) -> None:
    for name in ("mine", "kept"):
        paceline(capsys, home, "build", name, "--from", source)
    paceline(capsys, home, "rm", "mine").refused(2, "not without --yes")
    assert left(home) == ["kept", "mine"]
    done = paceline(capsys, home, "rm", "mine", "--yes", "--json")
    assert (done.code, done.json["name"], left(home)) == (0, "mine", ["kept"])
    paceline(capsys, home, "rm", "mine", "--yes").refused(2, "no corpus 'mine'")
    paceline(capsys, home, "rm", "../src", "--yes").refused(2, "a corpus cannot be named '../src'")
    assert source.is_dir()


def remembering(home: Path) -> list[bytes]:
    return [path.read_bytes() for path in home.rglob("*.jsonl")]


@pytest.mark.parametrize("scope", [(), ("--all",)])
def test_forget_asks_before_it_removes_anything(
    capsys: Capture, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", "-m", "toy:", "-n", "4", "--draft", "suffix", "--remember", "ab ab ab")
    assert command(capsys, *words, PACELINE_HOME=str(home)).code == 0
    (kept,) = remembering(home)
    done = paceline(capsys, home, "forget", *scope)
    assert done.code == 2
    assert "1 answer, " in done.err
    assert done.err.endswith("paceline: Forget them: not without --yes where nobody can be asked\n")
    assert remembering(home) == [kept]
    assert paceline(capsys, home, "forget", *scope, "--yes").code == 0
    assert paceline(capsys, home, "forget", *scope).err == "nothing was remembered\n"


def test_what_cannot_be_remembered_costs_no_answer(
    capsys: Capture, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", "-m", "toy:", "-n", "4", "--draft", "suffix", "--remember", "ab ab ab")
    first = command(capsys, *words, PACELINE_HOME=str(home))
    home = tmp_path / "file" / "home"  # a folder that cannot be made
    home.parent.write_bytes(b"")
    done = command(capsys, *words, PACELINE_HOME=str(home))
    assert (done.code, done.out) == (0, first.out)
    (warning,) = [line for line in done.err.splitlines() if line.startswith("paceline: ")]
    assert warning.startswith("paceline: nothing is remembered: ")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["build", "mine"], "nothing to read was found (no file); name files or directories"),
        (["build", "mine", "--from", "src", "--tokenizer", "missing"], "missing: no such file"),
        (["show", "mine"], "no corpus 'mine': make it with paceline corpus build mine"),
        (["show", "./src/b.sql"], "give the name of a corpus, or its folder"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(
    capsys: Capture, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], words: str
) -> None:
    monkeypatch.chdir(source.parent)
    paceline(capsys, home, *args).refused(2, words)
    assert not home.exists() or left(home) == []
