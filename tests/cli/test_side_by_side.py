"""Commands that write at the same time: each writes its own, whole, and says so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line import Done, program, start
from paceline.models import zoo

pytestmark = pytest.mark.slow


def together(commands: Sequence[Sequence[str | Path]], **env: str) -> list[Done]:
    """Start all commands at once and return their results."""
    processes = [start(*command, **env) for command in commands]
    ends = [process.communicate(timeout=300) for process in processes]
    return [
        Done(process.returncode, out.decode(), err.decode())
        for process, (out, err) in zip(processes, ends, strict=True)
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_builds_of_one_corpus_all_succeed_and_one_of_them_stays(tmp_path: Path) -> None:
    pytest.importorskip("pydivsufsort")
    home = tmp_path / "home"
    texts = []
    for i in range(3):
        texts.append(tmp_path / f"{i}.txt")
        texts[-1].write_text(f"the quick brown fox number {i} jumps over the lazy dog\n" * (i + 1))
    build = ("corpus", "build", "mine", "--tokenizer", zoo.target_path(), "--json", "--from")
    ends = together([(*build, text) for text in texts], PACELINE_HOME=str(home))
    assert [(done.code, done.json["sources"][0]["path"]) for done in ends] == [
        (0, str(text)) for text in texts
    ]
    assert names(home / "corpora") == ["mine"]
    shown = program("corpus", "show", "mine", "--json", PACELINE_HOME=str(home)).json
    (said,) = [done.json for done in ends if done.json["sources"] == shown["sources"]]
    assert said == shown
    assert {path.stat().st_mode & 0o077 for path in home.rglob("*")} == {0}
