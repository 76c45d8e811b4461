"""Remembered outputs are unchanged, limited to the newest, and private to their owner."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.speculative.errors import RememberedError
from paceline.speculative.vocabulary import Vocab
from paceline.storage import remembered
from paceline.storage.remembered import AnswerHistory, describe, forget, project_of


def vocab(size: int = 300) -> Vocab:
    return Vocab(size, "BPE", None, frozenset(), False, False, text=b"%d".__mod__, piece=b"%d".__mod__)


def kept(project: Path) -> list[list[int]]:
    return list(AnswerHistory.open(vocab(), project).outputs())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(project: Path) -> AnswerHistory:
    return AnswerHistory.open(vocab(), project)


def test_what_was_added_comes_back_oldest_first_in_another_process_too(
    store: AnswerHistory, project: Path
) -> None:
    assert list(store.outputs()) == []
    for output in ([1, 2, 3], [299], [0, 0], []):
        store.add(output)
    assert list(store.outputs()) == [[1, 2, 3], [299], [0, 0]] == kept(project)
    assert list(store.outputs(limit=3)) == [[299], [0, 0]]
    assert list(store.outputs(limit=2)) == [[0, 0]]
    assert list(store.outputs(limit=1)) == []


def test_of_a_file_that_grows_too_large_the_older_half_goes(
    store: AnswerHistory, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "MAX_BYTES", 400)
    for i in range(100):
        store.add([i] * 10)
        assert store.path.stat().st_size <= 400
    outputs = kept(project)
    assert 4 <= len(outputs) <= 13
    assert outputs == [[i] * 10 for i in range(100 - len(outputs), 100)]
    assert [one.project for one in describe(project)] == [project.resolve()]


@pytest.mark.parametrize("line", [b"[1,2", b"[300]", b"[-1]", b'["1"]', b"[" * 9999])
def test_a_line_that_is_no_output_costs_no_other(store: AnswerHistory, line: bytes) -> None:
    store.add([1])
    with store.path.open("ab") as file:
        file.write(line)  # as a process that was killed leaves it
    store.add([2])
    assert list(store.outputs()) == [[1], [2]]


def test_a_store_in_use_continues_after_it_was_forgotten(store: AnswerHistory, project: Path) -> None:
    store.add([1])
    forget(project)
    store.add([2])
    assert list(store.outputs()) == [[2]] == kept(project)
    assert [one.outputs for one in describe(project)] == [1]


def test_a_disk_that_cannot_be_written_is_told_once(project: Path, home: Path) -> None:
    told: list[str] = []
    store = AnswerHistory.open(vocab(), project, told.append)
    store.path.unlink()
    store.path.mkdir()
    for _ in range(2):
        store.add([1])
    assert len(told) == 1
    assert "neither this answer nor later ones will be remembered" in told[0]
    with pytest.raises(RememberedError, match="cannot be opened or written"):
        AnswerHistory.open(vocab(), project)


def test_a_project_is_the_nearest_marked_folder_or_the_working_directory(tmp_path: Path) -> None:
    inner = tmp_path / "repository" / "part" / "deep"
    inner.mkdir(parents=True)
    assert project_of(inner) == inner.resolve()
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere")  # a file in a worktree
    assert project_of(inner) == (tmp_path / "repository").resolve()
    (tmp_path / "repository" / "part" / ".paceline").mkdir()
    assert project_of(inner) == (tmp_path / "repository" / "part").resolve()
    (tmp_path / "link").symlink_to(inner)
    assert project_of(tmp_path / "link") == (tmp_path / "repository" / "part").resolve()


def test_nothing_appears_in_the_project_and_files_are_the_users_own(
    store: AnswerHistory, project: Path, home: Path
) -> None:
    before = os.umask(0)
    try:
        AnswerHistory.open(vocab(5), project).add([1])
    finally:
        os.umask(before)
    assert list(project.iterdir()) == []
    assert stat.S_IMODE((home / "remembered").stat().st_mode) == 0o700
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home / "remembered").iterdir()]
    assert modes == [0o600, 0o600]


def test_describe_tells_what_there_is_and_forget_removes_it(tmp_path: Path, project: Path) -> None:
    assert describe(None) == forget(None) == []
    store = AnswerHistory.open(vocab(), project)
    store.add([1, 2])
    store.add([3])
    AnswerHistory.open(vocab(301), project)
    AnswerHistory.open(vocab(), tmp_path / "other").add([4])
    assert sorted((str(k.project), k.outputs, k.tokens) for k in describe(None)) == sorted(
        [(str(project.resolve()), 2, 3), ("None", 0, 0), (str((tmp_path / "other").resolve()), 1, 1)]
    )
    (mine,) = [one for one in describe(project) if one.outputs]
    assert mine.path == store.path
    assert mine.bytes == store.path.stat().st_size
    assert len(forget(project)) == 2
    assert describe(project) == []
    assert [one.tokens for one in describe(None)] == [1]
    assert [one.outputs for one in forget(None)] == [1]
    assert describe(None) == forget(None) == []


START = """
import sys
from pathlib import Path
from paceline.speculative.vocabulary import Vocab
from paceline.storage.remembered import AnswerHistory
spelled = b"%d".__mod__
vocab = Vocab(300, "BPE", None, frozenset(), False, False, spelled, spelled)
project = Path(sys.argv[1])
"""
WRITER = """
print("ready", flush=True)
sys.stdin.readline()
store = AnswerHistory.open(vocab, project)
for i in range(40):
    store.add([int(sys.argv[2]), i, *range(100)])
"""
ENDLESS = """
store = AnswerHistory.open(vocab, project)
for i in range(10**6):
    store.add([int(sys.argv[2]), i % 200, i // 200, *[7] * 3000])
    print(i, flush=True)
"""


def started(script: str, project: Path, who: int) -> Any:
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", START + script, project, str(who)], text=True, **pipes)


def test_processes_that_make_and_fill_one_file_at_once_lose_nothing(project: Path) -> None:
    processes = [started(WRITER, project, who) for who in range(3)]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * 3
    outputs = kept(project)
    assert sorted(output[:2] for output in outputs) == [[who, i] for who in range(3) for i in range(40)]
    assert all(output[2:] == list(range(100)) for output in outputs)
    for who in range(3):
        mine = [output[1] for output in outputs if output[0] == who]
        assert mine == sorted(mine)


def test_whatever_the_moment_a_writer_is_killed_at_what_it_had_added_is_there(project: Path) -> None:
    acknowledged: dict[int, int] = {}
    for who in range(6):
        process = started(ENDLESS, project, who)
        for _ in range(3 + 2 * who):
            acknowledged[who] = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        acknowledged[who] = max([acknowledged[who], *map(int, rest.split())])
    store = AnswerHistory.open(vocab(), project)
    for who, last in acknowledged.items():
        mine = [output for output in store.outputs() if output[0] == who]
        assert mine == [[who, i % 200, i // 200, *[7] * 3000] for i in range(len(mine))]
        assert len(mine) >= last + 1
