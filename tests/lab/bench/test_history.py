"""The history: nothing that was added is lost, processes do not disturb each other, and a file that cannot be
used is named, with what to do, and left as it is."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

import paceline
from intruding import intrude
from paceline.core.errors import HistoryError, UsageError
from paceline.lab.bench.history import VERSION, History, default_path
from paceline.lab.bench.record import Interval, Result

PLAIN = Result({"n_draft": 8}, "plain", "", True, "yes", 2, 5, 640, speed=40.0)
DRAFTED = Result(
    {"n_draft": 8},
    "lookup",
    "",
    True,
    "yes",
    2,
    5,
    640,
    80.0,
    1.5,
    Interval(2.0, 1.9, 2.1),
    theory={"lab": 2.2},
)


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "new" / "bench.sqlite") as it:
        yield it


def test_a_run_reads_back_as_it_was_written(history: History) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    run = history.begin({"methods": ["plain", "lookup"], "bias": -math.inf}, {"threads": 2})
    begun = history.run(run)
    assert (begun.status, begun.results, begun.paceline) == ("running", (), paceline.__version__)
    assert before <= datetime.fromisoformat(begun.started) <= datetime.now(UTC)
    history.finish(run, "done", [PLAIN, DRAFTED])
    with History(history.path) as other:
        read = other.run("last")
    assert (read.id, read.status, read.started) == (run, "done", begun.started)
    assert read.plan == {"methods": ["plain", "lookup"], "bias": -math.inf}
    assert read.provenance == {"threads": 2}
    assert read.results == (asdict(PLAIN), asdict(DRAFTED))


def test_groups_and_gates_of_one_run_are_not_those_of_another(history: History) -> None:
    first, second = history.begin({}, {}), history.begin({}, {})
    history.add_group(first, 0, 1, "code/1", [{"n_tokens": 64, "rest": 0.5}, {"n_tokens": 64, "rest": 0.25}])
    history.add_group(first, 1, 0, "code/1", [{"rest": math.inf}])
    history.add_group(second, 0, 1, "code/1", [])
    history.add_gates(first, 0, {"lookup": {"lossless": False}})
    history.add_gates(first, 0, {"lookup": {"lossless": True}})
    assert history.groups(first) == {
        (0, 1, "code/1"): [{"n_tokens": 64, "rest": 0.5}, {"n_tokens": 64, "rest": 0.25}],
        (1, 0, "code/1"): [{"rest": math.inf}],
    }
    assert history.groups(second) == {(0, 1, "code/1"): []}
    assert history.gates(first) == {(0, "lookup"): {"lossless": True}}
    assert history.gates(second) == {}


def test_a_resumed_run_keeps_its_groups_and_gets_new_results(history: History) -> None:
    run = history.begin({}, {})
    history.add_group(run, 0, 0, "a", [{"rest": 1.0}])
    history.finish(run, "interrupted", [PLAIN, DRAFTED])
    history.resume(run)
    assert history.run(run).status == "running"
    assert list(history.groups(run)) == [(0, 0, "a")]
    history.finish(run, "done", [DRAFTED])
    assert history.run(run).results == (asdict(DRAFTED),)


def test_runs_come_newest_first_and_no_more_than_asked_for(history: History) -> None:
    assert history.runs() == []
    numbers = [history.begin({"number": i}, {}) for i in range(4)]
    assert [run.id for run in history.runs(3)] == numbers[:0:-1]
    assert history.run("last").plan == {"number": 3}


def test_a_deleted_run_takes_all_of_it_along_and_its_number_is_not_used_again(history: History) -> None:
    kept, gone = history.begin({}, {}), history.begin({}, {})
    history.add_group(gone, 0, 0, "a", [])
    history.add_gates(gone, 0, {"lookup": {}})
    history.finish(gone, "done", [PLAIN])
    history.delete(gone)
    assert [run.id for run in history.runs()] == [kept]
    assert (history.groups(gone), history.gates(gone)) == ({}, {})
    with sqlite3.connect(history.path) as raw:
        assert raw.execute("SELECT count(*) FROM results").fetchone() == (0,)
    raw.close()
    assert history.begin({}, {}) > gone


def test_a_run_that_is_not_there_is_a_wrong_argument(history: History) -> None:
    with pytest.raises(UsageError, match="is empty: run `paceline bench` first"):
        history.run("last")
    for use in (
        lambda: history.run(7),
        lambda: history.resume(7),
        lambda: history.delete(7),
        lambda: history.finish(7, "done", [PLAIN]),
        lambda: history.add_group(7, 0, 0, "a", []),
        lambda: history.add_gates(7, 0, {"lookup": {}}),
    ):
        with pytest.raises(UsageError, match="has no run 7: `paceline bench list`"):
            use()


def test_the_same_group_twice_means_that_two_measure_the_same_run(history: History) -> None:
    run = history.begin({}, {})
    history.add_group(run, 0, 2, "code/1", [{"rest": 1.0}])
    with pytest.raises(UsageError, match="run 1 already has item 'code/1' of point 0, round 2"):
        history.add_group(run, 0, 2, "code/1", [{"rest": 9.0}])
    assert history.groups(run) == {(0, 2, "code/1"): [{"rest": 1.0}]}


WRITER = """
import sys
from pathlib import Path
from paceline.lab.bench.history import History
print("ready", flush=True)
sys.stdin.readline()
with History(Path(sys.argv[1])) as history:
    run = history.begin({"who": sys.argv[2]}, {})
    for i in range(40):
        history.add_group(run, 0, i, "item", [{"who": sys.argv[2]}])
    history.finish(run, "done", [])
"""


@pytest.mark.parametrize("at", range(8))
def test_another_process_may_make_the_file_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    path = tmp_path / "bench.sqlite"

    def other() -> None:
        with History(path) as history:
            history.begin({"who": "other"}, {})

    passed = intrude(monkeypatch, at, other)
    with History(path) as history:
        history.begin({"who": "this"}, {})
        history.runs()
        assert len(passed) > at
        assert {run.plan["who"] for run in history.runs()} == {"this", "other"}


def test_processes_that_make_and_fill_one_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), who],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in ("a", "b", "c")
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [(writer.communicate()[1], writer.returncode) for writer in writers] == [("", 0)] * 3
    with History(path) as history:
        runs = history.runs()
        assert sorted(run.plan["who"] for run in runs) == ["a", "b", "c"]
        for run in runs:
            groups = history.groups(run.id)
            assert groups == {(0, i, "item"): [{"who": run.plan["who"]}] for i in range(40)}
            assert run.status == "done"


KILLED = """
import os, sys
from pathlib import Path
from paceline.lab.bench.history import History
history = History(Path(sys.argv[1]))
run = history.begin({}, {})
history.add_group(run, 0, 0, "kept", [])
os._exit(9)
"""


MEASURING = """
import sys
from pathlib import Path
from paceline.lab.bench.history import History
history = History(Path(sys.argv[1]))
history.begin({}, {})
print("begun", flush=True)
sys.stdin.readline()
"""


def test_a_run_is_running_for_as_long_as_its_process_lives_and_can_be_resumed_then(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    with (
        subprocess.Popen(
            [sys.executable, "-c", MEASURING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
        History(path) as history,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        assert [run.status for run in history.runs()] == ["running"]
        for use in (history.resume, history.check_idle):
            with pytest.raises(UsageError, match="run 1 is being measured by another process: wait until"):
                use(1)
        assert history.run(1).status == "running"
        process.kill()
        process.wait()
        assert [run.status for run in history.runs()] == ["interrupted"]
        history.check_idle(1)
        history.resume(1)
        assert history.run(1).status == "running"
        with History(path) as other:
            assert other.run(1).status == "running"
        history.finish(1, "done", [])
        assert history.run(1).status == "done"
    assert [one.name for one in tmp_path.iterdir()] == ["bench.sqlite"]


def test_a_run_is_not_running_any_more_where_its_history_was_closed_before_its_end(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    with History(path) as history:
        run = history.begin({}, {})
        assert history.run(run).status == "running"
    with History(path) as history:
        assert history.run(run).status == "interrupted"


def test_what_a_killed_process_left_goes_with_its_run(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    with History(path) as history:
        history.delete(1)
    assert [one.name for one in tmp_path.iterdir()] == ["bench.sqlite"]


def test_where_there_are_no_locks_a_run_stays_running_and_may_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.lab.bench.alive.lock", lambda _handle: None)
    path = tmp_path / "bench.sqlite"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    with History(path) as history:
        assert history.run(1).status == "running"
        history.check_idle(1)
        history.resume(1)


def test_the_file_and_those_beside_it_are_for_the_users_eyes_only(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "bench.sqlite"
    before = os.umask(0o022)
    try:
        with History(path) as history:
            history.begin({}, {})
            kept = [path, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm", "run-1"))]
            assert {one.stat().st_mode & 0o777 for one in kept} == {0o600}
            for one in (path.parent, path.parent.parent):
                assert one.stat().st_mode & 0o777 == 0o700
            for one in kept[:3]:
                one.chmod(0o644)  # as an older version made them
            with History(path):
                assert {one.stat().st_mode & 0o777 for one in kept} == {0o600}
    finally:
        os.umask(before)


def test_another_programs_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE theirs (a)")
    theirs.close()
    path.chmod(0o644)
    with pytest.raises(HistoryError, match="another program"):
        History(path)
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_was_added_outlives_a_process_that_dies(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == 9
    with History(path) as history:
        assert history.run("last").status == "interrupted"
        assert history.groups(history.run("last").id) == {(0, 0, "kept"): []}


def test_a_lock_that_stays_is_told_and_goes_away_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    with History(path, wait=0.05) as history:
        run = history.begin({}, {})
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(HistoryError, match=r"locked by another process for 0\.05 s: .*--no-history"):
            history.add_group(run, 0, 0, "a", [])
        with pytest.raises(HistoryError, match="locked by another process"):
            History(path, wait=0.05)
        with pytest.raises(HistoryError, match="locked by another process"):
            history.finish(run, "done", [])
        assert history.groups(run) == {}  # reading does not wait
        holder.close()
        history.add_group(run, 0, 0, "a", [])
        assert list(history.groups(run)) == [(0, 0, "a")]


def test_a_new_file_that_is_locked_is_told_too(tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "bench.sqlite", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(HistoryError, match=r"locked by another process for 0\.05 s"):
        History(tmp_path / "bench.sqlite", wait=0.05)
    holder.close()


def test_a_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 100)
    with pytest.raises(HistoryError, match=r"notes\.txt is damaged or no SQLite database .*: move it away"):
        History(path)
    assert path.read_text() == "not a database " * 100


def test_a_damaged_page_is_told_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bench.sqlite"
    with History(path) as history:
        run = history.begin({}, {})
        for i in range(200):
            history.add_group(run, 0, i, "item", [{"text": "x" * 200}])
    whole = path.read_bytes()
    page = 4096
    damaged = whole[: 2 * page] + b"\xff" * (len(whole) - 2 * page)
    path.write_bytes(damaged)
    with pytest.raises(HistoryError, match=r"bench\.sqlite is damaged"), History(path) as history:
        history.groups(run)
    assert path.read_bytes() == damaged


def test_text_that_is_no_json_is_damage(history: History) -> None:
    run = history.begin({}, {})
    with sqlite3.connect(history.path) as raw:
        raw.execute("UPDATE runs SET plan = '{'")
    raw.close()
    with pytest.raises(HistoryError, match="is damaged"):
        history.run(run)


def test_a_newer_file_asks_for_a_newer_paceline(history: History) -> None:
    with sqlite3.connect(history.path) as raw:
        raw.execute(f"PRAGMA user_version = {VERSION + 1}")
    raw.close()
    with pytest.raises(
        HistoryError, match=f"has version {VERSION + 1}, this Paceline knows {VERSION}: update"
    ):
        History(history.path)


def test_another_programs_database_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE runs (id INTEGER)")
    raw.commit()
    raw.close()
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="the database of another program"):
        History(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_be_written_names_the_way_without_a_history(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file / "bench.sqlite", tmp_path):
        with pytest.raises(HistoryError, match=r"cannot be opened or written \(.*\): .*--no-history"):
            History(path)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_directory_names_the_way_without_a_history(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(HistoryError, match=r"cannot be opened or written \(.*\): .*--no-history"):
        History(tmp_path / "bench.sqlite")


def test_the_default_place_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_HOME")
    assert default_path().parts[-2:] == ("paceline", "bench.sqlite")
