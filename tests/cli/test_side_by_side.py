"""Commands that write at the same time: each writes its own, whole, and says so, or says why not. Killed ones
leave nothing for long."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from command_line import Done, program, start
from paceline.models import zoo

pytestmark = pytest.mark.slow

INFLATE, SIZE = "tools.inflate", ("--type", "F16", "--params")  # writes for long


def together(commands: Sequence[Sequence[str | Path]], module: str = "paceline", **env: str) -> list[Done]:
    """Start all commands at once and return their results."""
    processes = [start(*command, module=module, **env) for command in commands]
    ends = [process.communicate(timeout=300) for process in processes]
    return [
        Done(process.returncode, out.decode(), err.decode())
        for process, (out, err) in zip(processes, ends, strict=True)
    ]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_of_inflations_into_one_file_one_succeeds_and_the_others_say_why_not(tmp_path: Path) -> None:
    out, other = tmp_path / "out.gguf", tmp_path / "other.gguf"
    ends = together([(path, *SIZE, "20M") for path in (out, out, out, other)], INFLATE)
    assert (ends[3].code, ends[3].out) == (0, f"{other}\n")
    assert sorted(done.code for done in ends[:3]) == [0, 2, 2]
    for done in ends:
        if done.code:
            done.refused(2, f"{out} ", "choose another name, or", "--force")
    assert names(tmp_path) == ["other.gguf", "out.gguf"]
    assert out.read_bytes() == other.read_bytes()


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


def writing(folder: Path) -> subprocess.Popen[bytes]:
    """An inflation that has begun to write and goes on for long."""
    process = start(folder / "large.gguf", *SIZE, "1B", module=INFLATE)
    end = time.monotonic() + 60
    while not any(path.stat().st_size for path in folder.glob(".paceline-*.tmp")):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGTERM,), 143), ((signal.SIGHUP,), 129), ((signal.SIGINT,), 130), ((signal.SIGINT,) * 2, 130)],
)
def test_an_inflation_that_is_ended_leaves_nothing(
    tmp_path: Path, signals: tuple[signal.Signals, ...], code: int
) -> None:
    process = writing(tmp_path)
    for one in signals:
        process.send_signal(one)
        time.sleep(0.05)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, b"", b"")
    assert names(tmp_path) == []
