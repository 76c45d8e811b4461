"""Measured costs on the disk: what is kept comes back, what cannot be used is said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.speculative.policy.cost_model import PassCosts
from paceline.storage.costs import CachedCosts, MeasurementEffort, keep, path_of, recall

KEY = {"model": "abc", "threads": 2, "flash_attention": None}
EFFORT = MeasurementEffort(2.5, (256, 1024), (1, 2, 4))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Said(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)


def kept() -> CachedCosts:
    return CachedCosts(PassCosts({256: {1: 0.1, 2: 0.15}, 1024: {1: 0.2}}), 0.01, EFFORT)


def test_what_is_kept_comes_back() -> None:
    said = Said()
    assert recall(KEY, said) is None
    assert keep(KEY, kept(), said)
    found = recall(KEY, said)
    assert found is not None
    assert found.cost.as_dict() == kept().cost.as_dict()
    assert (found.step, found.effort) == (0.01, EFFORT)
    assert said == []


def test_every_part_of_the_key_counts_and_their_order_does_not() -> None:
    keep(KEY, kept(), Said())
    assert recall(dict(reversed(KEY.items())), Said()) is not None
    for name in KEY:
        assert recall(KEY | {name: "another"}, Said()) is None


def test_the_last_writer_stays_and_nothing_else_lies_there() -> None:
    keep(KEY, kept(), Said())
    keep(KEY, CachedCosts(PassCosts.flat(3.0)), Said())
    found = recall(KEY, Said())
    assert found is not None
    assert (found.cost.seconds(1, 256), found.step, found.effort) == (3.0, 0.0, MeasurementEffort())
    assert [path.name for path in path_of(KEY).parent.iterdir()] == [path_of(KEY).name]


def changed(**parts: Any) -> bytes:
    return json.dumps(json.loads(path_of(KEY).read_bytes()) | parts).encode()


@pytest.mark.parametrize(
    "damage",
    [
        lambda: b"",
        lambda: b"{",
        lambda: b"\xff\xfe",
        lambda: b"[]",
        lambda: b"3",
        lambda: b"{}",
        lambda: b"[" * 100_000,
        lambda: path_of(KEY).read_bytes()[:-20],
        lambda: changed(format=99),
        lambda: changed(key={"model": "another"}),
        lambda: changed(cost={"rows": [1], "depths": [256], "seconds": [[-1.0]]}),
        lambda: changed(step="x"),
        lambda: changed(effort=None),
        lambda: changed(effort={"seconds": "x", "depths": [], "rows": []}),
        lambda: changed(effort={"seconds": 1, "depths": 3, "rows": []}),
        lambda: changed(effort={"seconds": 1}),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_said_and_can_be_replaced(damage: Any) -> None:
    keep(KEY, kept(), Said())
    path_of(KEY).write_bytes(damage())
    said = Said()
    assert recall(KEY, said) is None
    (line,) = said
    assert str(path_of(KEY)) in line
    assert "measured again" in line
    assert "\n" not in line
    keep(KEY, kept(), said)
    assert recall(KEY, said) is not None
    assert len(said) == 1


def test_what_cannot_be_read_is_said_with_the_reason() -> None:
    path_of(KEY).mkdir(parents=True)
    said = Said()
    assert recall(KEY, said) is None
    assert "cannot be read (Is a directory)" in said[0]


def test_a_disk_that_refuses_is_said_once_and_nothing_half_written_stays(home: Path) -> None:
    path_of(KEY).mkdir(parents=True)  # what is written cannot take its name
    said = Said()
    assert not keep(KEY, kept(), said)
    (line,) = said
    assert "cannot be written" in line
    assert [path.name for path in (home / "costs").iterdir()] == [path_of(KEY).name]


def test_a_home_that_cannot_be_made_is_said(home: Path) -> None:
    home.write_text("a file")
    said = Said()
    assert not keep(KEY, kept(), said)
    assert "cannot be written" in said[0]
    assert recall(KEY, said) is None


def test_a_full_disk_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(KEY, kept(), Said())

    def full(*args: Any, **more: Any) -> None:
        raise OSError(28, "No space left on device")

    said = Said()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        assert not keep(KEY, CachedCosts(PassCosts.flat(3.0)), said)
    assert "No space left on device" in said[0]
    found = recall(KEY, said)
    assert found is not None
    assert found.cost.seconds(1, 256) == 0.1
    assert len(list(path_of(KEY).parent.iterdir())) == 1


def test_two_processes_names_never_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    real = os.fsync

    def noted(handle: int) -> None:
        seen.extend(path.name for path in path_of(KEY).parent.iterdir())
        real(handle)

    monkeypatch.setattr(os, "fsync", noted)
    keep(KEY, kept(), Said())
    keep(KEY, kept(), Said())
    temporary = {name for name in seen if name.startswith(".")}
    assert len(temporary) == 2


@pytest.mark.parametrize(
    ("other", "covered"),
    [
        (EFFORT, True),
        (MeasurementEffort(1.0, (256,), (1, 4)), True),
        (MeasurementEffort(3.0, (256,), (1,)), False),
        (MeasurementEffort(1.0, (4096,), (1,)), False),
        (MeasurementEffort(1.0, (256,), (1, 3)), False),
    ],
)
def test_an_effort_covers_what_asks_for_no_more(other: MeasurementEffort, covered: bool) -> None:
    assert EFFORT.covers(other) is covered
