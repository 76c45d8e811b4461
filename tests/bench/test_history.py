"""The bench history: run numbers, ends, and files of another kind."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bench_records import drafted, plain
from paceline.bench.history import History
from paceline.bench.system import BenchAnswer, ItemMeasurements, measurement
from paceline.speculative.errors import HistoryError, UsageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "bench.jsonl"


def group(round_: int, item: str, seconds: float = 1.0) -> ItemMeasurements:
    answer = BenchAnswer("", None, 5, 3, first=0.5, seconds=1.5, decoded=4, decoding=seconds)
    return ItemMeasurements(
        round_, item, "code", {"plain": measurement("plain", answer)}, {"plain": "identical"}
    )


def test_runs_are_numbered_in_their_order_and_newest_first(path: Path) -> None:
    history = History(path)
    assert history.runs() == []
    assert [history.begin({"n": n}, {"suite": "code"}) for n in range(3)] == [1, 2, 3]
    history.finish(2, "done", [plain(), drafted("lookup", (2.0, 1.9, 2.1))])
    runs = History(path).runs(2)
    assert [(run["id"], run["status"], run["plan"]["n"]) for run in runs] == [
        (3, "running", 2),
        (2, "done", 1),
    ]
    assert [result["system"] for result in runs[1]["results"]] == ["plain", "lookup"]
    assert history.run("last")["id"] == 3
    with pytest.raises(UsageError, match="has no run 7"):
        history.run(7)
    assert path.stat().st_mode & 0o077 == 0


def test_groups_come_back_as_they_were_and_twice_is_once(path: Path) -> None:
    history = History(path)
    first, second = history.begin({}, {}), history.begin({}, {})
    for one in (group(0, "a"), group(0, "b"), group(0, "a", 9.0), group(1, "a")):
        history.add(first, one)
    history.add(second, group(0, "c"))
    assert history.groups(first) == [group(0, "a"), group(0, "b"), group(1, "a")]
    assert [asdict(group)["item"] for group in history.groups(second)] == ["c"]


def test_a_line_that_a_killed_process_has_left_costs_no_more_than_itself(path: Path) -> None:
    history = History(path)
    run = history.begin({}, {})
    with path.open("ab") as file:
        file.write(b'{"run": "abc", "rou')
    history.add(run, group(0, "a"))
    assert history.groups(run) == [group(0, "a")]


@pytest.mark.parametrize("said", [b"no history at all", b"SQLite format 3\0" * 9, b"[1]\n", b'{"id": 1}\n'])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(said)
    with pytest.raises(HistoryError, match="is damaged, or no bench history: move it away"):
        History(path)
    assert path.read_bytes() == said


def test_what_cannot_be_read_or_written_or_is_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"cannot be read or written \(Is a directory\)"):
        History(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="--no-history"):
        History(tmp_path / "file" / "bench.jsonl").begin({}, {})
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps({"run": "a", "format": 2, "plan": {}}) + "\n")
    with pytest.raises(HistoryError, match="update Paceline"):
        History(path)
