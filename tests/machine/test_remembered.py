"""What is remembered comes back as it was, the newest of it, and only to whom it belongs."""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intruding import intrude
from paceline.core.errors import RememberedError, UsageError
from paceline.machine import remembered_file
from paceline.machine.database import make_private
from paceline.machine.remembered import Remembered, describe, forget, project_of
from remembering import kept, vocab


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(project: Path) -> Iterator[Remembered]:
    with Remembered.open(vocab(), project) as it:
        yield it


def test_what_was_added_comes_back_oldest_first_in_another_process_too(
    store: Remembered, project: Path
) -> None:
    assert list(store.outputs()) == []
    for output in ([1, 2, 3], [299], [0, 0], []):
        store.add(output)
    assert list(store.outputs()) == [[1, 2, 3], [299], [0, 0]] == kept(project)
    assert list(store.outputs(limit=3)) == [[299], [0, 0]]
    assert list(store.outputs(limit=2)) == [[0, 0]]
    assert list(store.outputs(limit=1)) == []


@pytest.mark.parametrize(("size", "bytes_"), [(65_536, 2), (65_537, 4), (152_064, 4)])
def test_a_token_takes_two_bytes_where_the_vocabulary_allows_it(
    project: Path, size: int, bytes_: int
) -> None:
    store = Remembered.open(vocab(size), project)
    store.add([0, size - 1])
    assert list(store.outputs()) == [[0, size - 1]]
    with sqlite3.connect(store.path) as raw:
        assert raw.execute("SELECT length(tokens) FROM outputs").fetchone() == (2 * bytes_,)
    raw.close()


@given(
    outputs=st.lists(st.lists(st.integers(0, 299), min_size=1, max_size=9), max_size=12),
    limit=st.integers(1, 20),
)
@settings(max_examples=30, deadline=None)
def test_the_newest_outputs_that_fit_the_limit_are_kept(outputs: list[list[int]], limit: int) -> None:
    expected: list[list[int]] = []
    for output in outputs:
        expected.append(output[-limit:])
        while sum(map(len, expected)) > limit:
            expected.pop(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Remembered(Path(folder) / "it.sqlite", Path(folder), vocab(), limit)
        for output in outputs:
            store.add(output)
        assert list(store.outputs()) == expected
        with sqlite3.connect(store.path) as raw:
            assert raw.execute("SELECT tokens FROM store").fetchone() == (sum(map(len, expected)),)
        raw.close()


def test_a_lower_limit_drops_what_is_too_much_with_the_next_output(project: Path) -> None:
    store = Remembered.open(vocab(), project, limit=100)
    for i in range(10):
        store.add([i] * 10)
    assert len(kept(project, limit=25)) == 10
    Remembered.open(vocab(), project, limit=25).add([42] * 5)
    assert kept(project) == [[8] * 10, [9] * 10, [42] * 5]


def test_a_limit_of_nothing_is_a_wrong_argument(project: Path) -> None:
    with pytest.raises(UsageError, match="0 tokens to remember: must be at least 1"):
        Remembered.open(vocab(), project, limit=0)


def test_projects_and_vocabularies_do_not_mix(tmp_path: Path, project: Path) -> None:
    Remembered.open(vocab(), project).add([1])
    Remembered.open(vocab(301), project).add([2])
    Remembered.open(vocab(), tmp_path / "other").add([3])
    assert kept(project) == [[1]]
    assert list(Remembered.open(vocab(301), project).outputs()) == [[2]]


def test_a_file_of_another_vocabulary_under_our_name_is_refused(store: Remembered, project: Path) -> None:
    store.add([299])
    with pytest.raises(RememberedError, match="has tokens of another vocabulary: remove it"):
        Remembered(store.path, project, vocab(299))


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
    store: Remembered, project: Path, home: Path
) -> None:
    before = os.umask(0)
    try:
        Remembered.open(vocab(5), project).add([1])
    finally:
        os.umask(before)
    assert list(project.iterdir()) == []
    assert stat.S_IMODE((home / "remembered").stat().st_mode) == 0o700
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home / "remembered").iterdir()]
    assert modes == [0o600, 0o600]


def test_a_path_that_is_no_text_is_a_project_too(tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"caf\xe9 ?#%41")
    Remembered.open(vocab(), odd).add([1])
    assert kept(odd) == [[1]]
    assert [one.project for one in describe(odd)] == [odd.resolve()]


def test_describe_tells_what_there_is_and_forget_removes_it(tmp_path: Path, project: Path) -> None:
    assert describe(None) == forget(None) == []
    store = Remembered.open(vocab(), project)
    store.add([1, 2])
    store.add([3])
    Remembered.open(vocab(301), project)
    Remembered.open(vocab(), tmp_path / "other").add([4])
    assert sorted((k.project, k.outputs, k.tokens) for k in describe(None)) == sorted(
        [(project.resolve(), 2, 3), (project.resolve(), 0, 0), ((tmp_path / "other").resolve(), 1, 1)]
    )
    (mine,) = [one for one in describe(project) if one.outputs]
    assert mine.path == store.path
    assert mine.bytes == store.path.stat().st_size
    assert mine.since is not None
    assert mine.problem == ""
    assert len(forget(project)) == 2
    assert describe(project) == []
    assert [one.tokens for one in describe(None)] == [1]
    assert [one.outputs for one in forget(None)] == [1]
    assert describe(None) == forget(None) == []


def test_what_was_forgotten_or_dropped_is_not_left_in_the_file(project: Path) -> None:
    store = Remembered.open(vocab(70_000), project, limit=4)
    store.add([0x11223, 0x10456])
    secret = bytes.fromhex("2312010056040100")
    assert secret in store.path.read_bytes()
    store.add([1, 1, 1])
    assert secret not in store.path.read_bytes()
    store.add([0x11223, 0x10456])
    size = store.path.stat().st_size
    Remembered.open(vocab(70_000), project, limit=100_000).add([7] * 90_000)
    forget(project)
    left = store.path.read_bytes()
    assert secret not in left
    assert os.fsencode(project) not in left
    assert len(left) <= size


def test_a_store_in_use_goes_on_after_it_was_forgotten(store: Remembered, project: Path) -> None:
    store.add([1])
    forget(project)
    store.add([2])
    assert list(store.outputs()) == [[2]] == kept(project)


def test_a_file_removed_in_the_middle_of_adding_is_made_anew(
    store: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([1])
    open_ = remembered_file._open
    removed: list[Path] = []

    def opens(path: Path) -> sqlite3.Connection:
        connection = open_(path)
        if not removed:
            connection.execute("SELECT * FROM store").fetchall()
            removed.append(path)
            path.unlink()
        return connection

    monkeypatch.setattr(remembered_file, "_open", opens)
    store.add([2])
    assert removed
    assert list(store.outputs()) == [[2]]


@pytest.mark.parametrize("does", ["opens", "adds", "describes", "forgets", "removes"])
def test_another_process_may_find_the_file_while_it_is_still_empty(
    project: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    name, found = "paceline.machine.remembered_file.make_private", list[int]()

    def makes(path: Path) -> None:
        make_private(path)
        if found:
            return
        found.append(path.stat().st_size)
        with monkeypatch.context() as patch:
            patch.setattr(name, make_private)
            acts: dict[str, Callable[[], object]] = {
                "opens": lambda: Remembered.open(vocab(), project),
                "adds": lambda: Remembered.open(vocab(), project).add([1]),
                "describes": lambda: describe(project),
                "forgets": lambda: forget(project),
                "removes": lambda: remembered_file.remove(path, 1),
            }
            acts[does]()

    monkeypatch.setattr(name, makes)
    Remembered.open(vocab(), project).add([2])
    assert found == [0]
    assert kept(project) == [*([[1]] if does == "adds" else []), [2]]


@pytest.mark.parametrize("at", range(8))
def test_another_process_may_make_or_forget_the_file_at_any_moment(
    project: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def other() -> None:
        forget(project)
        Remembered.open(vocab(), project).add([1])

    passed = intrude(monkeypatch, at, other)
    store = Remembered.open(vocab(), project)
    store.add([2])
    outputs = list(store.outputs())
    assert len(passed) > at
    assert outputs in ([[1]], [[1], [2]], [[2], [1]])


@pytest.mark.parametrize("at", range(6))
def test_another_process_may_forget_the_file_at_any_moment(
    project: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    Remembered.open(vocab(), project).add([1])
    passed = intrude(monkeypatch, at, lambda: forget(project))
    store = Remembered.open(vocab(), project)
    store.add([2])
    outputs = list(store.outputs())
    assert len(passed) > at
    assert outputs in ([], [[2]])


def test_threads_may_share_a_store(store: Remembered) -> None:
    def add(i: int) -> None:
        for j in range(10):
            store.add([i, j])

    threads = [threading.Thread(target=add, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store.outputs()) == [[i, j] for i in range(4) for j in range(10)]


def test_after_closing_nothing_is_added(store: Remembered) -> None:
    store.add([1])
    store.close()
    store.add([2])
    assert list(store.outputs()) == [[1]]
