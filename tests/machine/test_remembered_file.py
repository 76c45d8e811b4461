"""What is said of a file of remembered outputs that cannot be used, and that answers go on without it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.errors import RememberedError
from paceline.machine import remembered_file
from paceline.machine.remembered import Remembered, describe, forget
from paceline.machine.remembered_file import VERSION, remove
from remembering import kept, vocab


@pytest.fixture
def store(project: Path) -> Iterator[Remembered]:
    with Remembered.open(vocab(), project) as it:
        yield it


def short(path: Path) -> Remembered:
    """The store in a file of its own, which waits for no lock."""
    return Remembered(path, path.parent, vocab(), wait=0.05)


def test_a_lock_that_stays_is_told_and_reading_one_goes_on(tmp_path: Path) -> None:
    store = short(tmp_path / "it.sqlite")
    store.add([1])
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RememberedError, match=r"locked by another process for 0\.05 s: try again"):
        store.add([2])
    assert list(store.outputs()) == [[1]]
    holder.close()
    store.add([2])
    assert list(store.outputs()) == [[1], [2]]


@pytest.mark.parametrize("does", ["adds", "opens", "reads", "forgets"])
def test_a_lock_that_others_hand_on_is_waited_for_while_they_get_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    path, looks = tmp_path / "it.sqlite", list[int]()
    store = short(path)
    store.add([1])
    with closing(sqlite3.connect(path, isolation_level=None)) as others:
        others.execute("BEGIN EXCLUSIVE")

        def monotonic() -> float:
            """Between any two looks at the clock the others write once more, and a second passes."""
            looks.append(len(looks))
            if len(looks) < 20:
                others.execute("INSERT INTO outputs (added, n, tokens) VALUES (0, 1, x'0700')")
                others.execute("UPDATE store SET tokens = tokens + 1")
                others.execute("COMMIT")
                others.execute("BEGIN EXCLUSIVE")
            elif len(looks) == 20:
                others.execute("COMMIT")
            return len(looks)

        monkeypatch.setattr("time.monotonic", monotonic)
        acts: dict[str, Callable[[], object]] = {
            "adds": lambda: Remembered(path, tmp_path, vocab(), wait=5).add([2]),
            "opens": lambda: Remembered(path, tmp_path, vocab(), wait=5),
            "reads": lambda: Remembered(path, tmp_path, vocab(), wait=5).outputs(),
            "forgets": lambda: remove(path, 5),
        }
        acts[does]()
    assert len(looks) >= 20
    left = [[1], *[[7]] * 19]
    assert list(store.outputs()) == {"adds": [*left, [2]], "forgets": []}.get(does, left)


def test_a_reader_that_takes_its_time_locks_nobody_out(tmp_path: Path) -> None:
    store = short(tmp_path / "it.sqlite")
    for i in range(3):
        store.add([i])
    reading = store.outputs()
    assert next(reading) == [0]
    short(tmp_path / "it.sqlite").add([3])
    assert list(reading) == [[1], [2]]


def test_forgetting_a_file_that_is_being_written_waits_and_then_says_so(
    store: Remembered, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.machine.remembered.WAIT", 0.05)
    holder = sqlite3.connect(store.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(RememberedError, match="locked by another process"):
        forget(project)
    assert store.path.exists()
    holder.close()
    assert len(forget(project)) == 1


def test_a_file_that_another_has_just_emptied_is_not_unlinked(store: Remembered) -> None:
    store.add([1])
    remove(store.path, 1)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as user:
        user.execute("BEGIN IMMEDIATE")
        user.execute("INSERT INTO store SELECT x'00', 'made anew', 0")
        user.execute("ROLLBACK")
        remove(store.path, 1)
        user.execute("INSERT INTO store SELECT x'00', 'made anew', 0")
    assert [path.name for path in store.path.parent.iterdir()] == [store.path.name]


def test_a_damaged_file_is_told_left_alone_and_can_be_forgotten(store: Remembered, project: Path) -> None:
    store.path.write_bytes(b"not a database " * 100)
    with pytest.raises(RememberedError, match=r"is damaged \(.*\): remove it with `paceline corpus forget`"):
        Remembered.open(vocab(), project)
    assert store.path.read_bytes() == b"not a database " * 100
    (told,) = describe(project)
    assert (told.bytes, told.project) == (1500, None)
    assert "is damaged" in told.problem
    assert len(forget(project)) == 1
    assert kept(project) == []


def test_a_damaged_page_is_told_where_it_is_read(store: Remembered) -> None:
    for i in range(100):
        store.add([i] * 200)
    content = store.path.read_bytes()
    store.path.write_bytes(content[: 3 * 4096] + b"\xff" * (len(content) - 3 * 4096))
    with pytest.raises(RememberedError, match="is damaged"):
        store.outputs()


@pytest.mark.parametrize("change", ["tokens = x'ffff'", "n = n + 1", "tokens = x''"])
def test_tokens_that_do_not_exist_never_reach_a_drafter(store: Remembered, change: str) -> None:
    store.add([1])
    with sqlite3.connect(store.path) as raw:
        raw.execute(f"UPDATE outputs SET {change}")
    raw.close()
    with pytest.raises(RememberedError, match=r"damaged \(it has tokens that do not exist"):
        store.outputs()


def test_a_newer_file_asks_for_a_newer_paceline_and_is_not_changed(store: Remembered, project: Path) -> None:
    with sqlite3.connect(store.path) as raw:
        raw.execute(f"PRAGMA user_version = {VERSION + 1}")
    raw.close()
    before = store.path.read_bytes()
    with pytest.raises(
        RememberedError, match=f"version {VERSION + 1}, this Paceline knows {VERSION}: update"
    ):
        Remembered.open(vocab(), project)
    assert "update Paceline" in describe(project)[0].problem
    assert store.path.read_bytes() == before


def test_another_programs_database_is_not_written_to(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "it.sqlite")
    raw.execute("CREATE TABLE outputs (id INTEGER)")
    raw.close()
    before = (tmp_path / "it.sqlite").read_bytes()
    with pytest.raises(RememberedError, match="another program's database"):
        short(tmp_path / "it.sqlite")
    assert (tmp_path / "it.sqlite").read_bytes() == before


def test_a_file_whose_maker_was_killed_before_it_had_tables_is_used(store: Remembered, project: Path) -> None:
    store.path.write_bytes(b"")
    assert describe(project) == []
    Remembered.open(vocab(), project).add([1])
    assert kept(project) == [[1]]


def test_a_place_that_cannot_be_written_names_the_way_out(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "file"))
    with pytest.raises(
        RememberedError, match=r"cannot be opened or written \(.*\): .*PACELINE_HOME, or leave"
    ):
        Remembered.open(vocab(), project)


def test_on_a_full_disk_the_answer_goes_on_with_one_warning(
    store: Remembered, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add([1])
    open_ = remembered_file._open

    def opens(path: Path) -> sqlite3.Connection:
        connection = open_(path)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    monkeypatch.setattr(remembered_file, "_open", opens)
    told: list[str] = []
    heeded = Remembered.open(vocab(), project, warn=told.append)
    for _ in range(3):
        heeded.add([2] * 10_000)
    assert len(told) == 1
    assert told[0].startswith("neither this answer nor later ones will be remembered: ")
    assert "database or disk is full" in told[0]
    with pytest.raises(RememberedError, match="database or disk is full"):
        store.add([2] * 10_000)
    store.add([3])  # there is room for that
    assert list(store.outputs()) == [[1], [3]]


READ_ONLY = """
import os, sys
from pathlib import Path
from paceline.core.vocab import Vocab
from paceline.machine.remembered import Remembered
from paceline.core.errors import RememberedError
spelled = b"%d".__mod__
vocab = Vocab(300, "BPE", None, frozenset(), False, False, spelled, spelled)
folder = Path(sys.argv[1])
told = []
if os.geteuid() == 0:
    os.setuid(65534)  # the superuser may write anywhere
store = Remembered(folder / "it.sqlite", folder, vocab, warn=told.append)
print(list(store.outputs()))
store.add([2])
print(told)
try:
    Remembered(folder / "other.sqlite", folder, vocab)
except RememberedError as error:
    print(error)
"""


@pytest.mark.skipif(os.name != "posix", reason="permissions of folders")
def test_a_read_only_folder_can_be_learned_from_and_adding_warns() -> None:
    with tempfile.TemporaryDirectory() as name:  # one that other users may reach
        folder = Path(name)
        Remembered(folder / "it.sqlite", folder, vocab()).add([1])
        (folder / "it.sqlite").chmod(0o444)
        folder.chmod(0o555)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, name], capture_output=True, text=True)
        folder.chmod(0o755)
    assert done.stderr == ""
    outputs, told, refused = done.stdout.splitlines()
    assert outputs == "[[1]]"
    assert "readonly database" in told
    assert "cannot be opened or written (Permission denied)" in refused
