"""The file of a run: torn lines, the first of two measurements, and files of another kind."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from paceline.bench import run_file
from paceline.bench.system import BenchAnswer, ItemMeasurements, measurement
from paceline.speculative.errors import UsageError


def group(round_: int, item: str, seconds: float = 1.0) -> ItemMeasurements:
    answer = BenchAnswer("", None, 5, 3, first=0.5, seconds=1.5, decoded=4, decoding=seconds)
    measured = {"plain": measurement("plain", answer)}
    return ItemMeasurements(round_, item, "code", measured, {"plain": "identical"})


def test_groups_are_read_once_despite_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run.jsonl"
    run_file.Run({"n": 1}, {"suite": "code"}).begin(path)
    run_file.append(path, asdict(group(0, "a")))
    with path.open("ab") as file:
        file.write(b'{"round": 0, "it')  # by a killed process
    for one in (group(0, "b"), group(0, "a", 9.0), group(1, "a")):
        run_file.append(path, asdict(one))
    run = run_file.read(path)
    assert run.groups == [group(0, "a"), group(0, "b"), group(1, "a")]
    assert (run.status, run.results, run.plan, run.provenance) == ("running", [], {"n": 1}, {"suite": "code"})
    for status in ("interrupted", "done"):
        run_file.append(path, {"status": status, "results": []})
    assert run_file.read(path).status == "done"
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "content", [b"", b"no run at all", b"[1]\n", b'{"format": 1, "plan": {}}\n', b'{"format": 2}\n{"a": 1}\n']
)
def test_other_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no run of `paceline bench`, or one of another version"):
        run_file.read(path)


def test_unusable_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot be written \(File exists\); name another file \(-o\)"):
        run_file.Run({}).begin(tmp_path / "file" / "run.jsonl")
