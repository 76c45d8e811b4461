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
    measured = {"plain": measurement("plain", answer)}
    return ItemMeasurements(round_, item, "code", measured, {"plain": "identical"})


def test_runs_are_numbered_and_newest_first(path: Path) -> None:
    history = History(path)
    assert history.runs() == []
    assert [history.begin({"n": n}, {"suite": "code"}) for n in range(3)] == [1, 2, 3]
    history.finish(2, "done", [plain(), drafted("lookup", (2.0, 1.9, 2.1))])
    last, done, first = History(path).runs()
    assert [(run["id"], run["status"], run["plan"]["n"]) for run in (last, first)] == [
        (3, "running", 2),
        (1, "running", 0),
    ]
    assert (done["status"], [result["system"] for result in done["results"]]) == ("done", ["plain", "lookup"])
    assert history.run("last")["id"] == 3
    with pytest.raises(UsageError, match="has no run 7"):
        history.run(7)
    assert path.stat().st_mode & 0o077 == 0


def test_groups_are_read_once_despite_a_torn_line(path: Path) -> None:
    history = History(path)
    first = history.begin({}, {})
    with path.open("ab") as file:
        file.write(b'{"run": "abc", "rou')  # by a killed process
    second = history.begin({}, {})
    for one in (group(0, "a"), group(0, "b"), group(0, "a", 9.0), group(1, "a")):
        history.add(first, one)
    history.add(second, group(0, "c"))
    assert history.groups(first) == [group(0, "a"), group(0, "b"), group(1, "a")]
    assert [asdict(group)["item"] for group in history.groups(second)] == ["c"]


@pytest.mark.parametrize("said", [b"no history at all", b"SQLite format 3\0" * 9, b"[1]\n", b'{"id": 1}\n'])
def test_other_file_is_refused_and_unchanged(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "bench.jsonl"
    path.write_bytes(said)
    with pytest.raises(HistoryError, match="is damaged, or no bench history"):
        History(path)
    assert path.read_bytes() == said


def test_unusable_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"cannot be read \(Is a directory\)"):
        History(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="--no-history"):
        History(tmp_path / "file" / "bench.jsonl").begin({}, {})
    path = tmp_path / "bench.jsonl"
    path.write_text(json.dumps({"run": "a", "format": 2, "plan": {}}) + "\n")
    with pytest.raises(HistoryError, match="update Paceline"):
        History(path)
