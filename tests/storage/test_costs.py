"""Measured costs on the disk: what is kept comes back, what cannot be used is said in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.speculative.policy.costs import PassCosts
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import record_path

KEY = {"model": "abc", "threads": 2, "flash_attention": None}
EFFORT = MeasurementEffort(2.5, (256, 1024), (1, 2, 4))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def kept() -> CachedCosts:
    return CachedCosts(PassCosts({256: {1: 0.1, 2: 0.15}, 1024: {1: 0.2}}), 0.01, EFFORT)


def test_what_is_kept_comes_back() -> None:
    said: list[str] = []
    assert load(KEY, said.append) is None
    assert store(KEY, kept(), said.append)
    found = load(KEY, said.append)
    assert found is not None
    assert found.cost.as_dict() == kept().cost.as_dict()
    assert (found.step, found.effort) == (0.01, EFFORT)
    assert said == []


def changed(**parts: Any) -> bytes:
    return json.dumps(json.loads(record_path("costs", KEY).read_bytes()) | parts).encode()


WRONG: tuple[Any, ...] = (("x", []), (1, 3), (1, [float("inf")]))
EFFORTS = [{"seconds": seconds, "depths": depths, "rows": []} for seconds, depths in WRONG]


@pytest.mark.parametrize(
    "damage",
    [
        lambda: changed(cost={"rows": [1], "depths": [256], "seconds": [[-1.0]]}),
        lambda: changed(step="x"),
        *(lambda effort=effort: changed(effort=effort) for effort in (None, {"seconds": 1}, *EFFORTS)),
    ],
)
def test_a_file_that_is_damaged_or_foreign_is_said_and_can_be_replaced(damage: Any) -> None:
    store(KEY, kept(), print)
    record_path("costs", KEY).write_bytes(damage())
    said: list[str] = []
    assert load(KEY, said.append) is None
    (line,) = said
    assert str(record_path("costs", KEY)) in line
    assert "measured again" in line
    assert "\n" not in line
    store(KEY, kept(), said.append)
    assert load(KEY, said.append) is not None
    assert len(said) == 1


@pytest.mark.parametrize(
    ("other", "covered"),
    [
        (EFFORT, True), (MeasurementEffort(1.0, (256,), (1, 4)), True),
        (MeasurementEffort(3.0, (256,), (1,)), False), (MeasurementEffort(1.0, (4096,), (1,)), False),
        (MeasurementEffort(1.0, (256,), (1, 3)), False),
    ],
)  # fmt: skip
def test_an_effort_covers_what_asks_for_no_more(other: MeasurementEffort, covered: bool) -> None:
    assert EFFORT.covers(other) is covered
