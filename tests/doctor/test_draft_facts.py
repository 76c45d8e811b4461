"""Results of earlier benches of a pair, and the memory for one."""

from __future__ import annotations

from typing import Any

import pytest

from bench_records import drafted, failed, plain, record
from paceline.bench.run_file import Run, Status
from paceline.doctor.drafts import Measured, available_memory, newest_result
from paceline.hardware.gpus import Gpu
from paceline.hardware.probe import MemoryInfo

HERE = {"processor": "A processor", "threads": 2}
OURS, THEIRS = "a" * 64, "b" * 64
FIXED = "model:policy=fixed"


def run(
    number: int, *results: Any, target: str = OURS, draft: str | None = THEIRS, status: Status = "done"
) -> Run:
    stored = record([plain(), *results])
    provenance = stored["provenance"] | {"target": {"fingerprint": target}}
    provenance["draft"] = None if draft is None else {"fingerprint": draft}
    started = f"2026-11-0{number}T12:00:00"
    return Run({}, provenance, started, status=status, results=stored["results"])


def found(
    *runs: Run, task: str = "any", drafter: str = "model", draft: str | None = THEIRS
) -> Measured | None:
    return newest_result(runs, OURS, draft, tuple(drafter.split("|")), task, HERE)


def speed(past: Measured | None) -> float:
    assert past is not None
    return past.speedup


def test_the_speed_of_the_newest_run_of_the_pair() -> None:
    old, new = (run(n, drafted("model", (gain, 0.9, 2.2))) for n, gain in ((1, 1.5), (2, 1.25)))
    past = found(new, old)
    assert past is not None
    assert (past.source, past.low, past.speedup, past.high) == ("bench of 2026-11-02", 0.9, 1.25, 2.2)


@pytest.mark.parametrize(
    "other",
    [
        run(1, drafted("model", (2, 1, 3)), target="c" * 64),
        run(1, drafted("model", (2, 1, 3)), draft="c" * 64),
        run(1, drafted("model", (2, 1, 3)), status="interrupted"),
        run(1, failed("model")),
        run(1, drafted("lookup+model", (2, 1, 3))),
        run(1, drafted("model:mystery=1", (2, 1, 3))),
    ],
)
def test_what_is_of_something_else_says_nothing(other: Run) -> None:
    assert found(other) is None
    kept = run(2, drafted("model", (1.5, 1, 3)))
    assert speed(found(other, kept)) == 1.5


def test_a_task_has_its_own_speed() -> None:
    one = run(1, drafted("model", (1.2, 1, 2)), drafted("model", (2.0, 1, 3), "json"))
    assert (speed(found(one)), speed(found(one, task="json"))) == (1.2, 2.0)
    assert found(one, task="prose") is None


def test_a_loss_counts_where_the_rule_could_have_declined() -> None:
    loss = (0.6, 0.5, 0.7)
    assert found(run(1, drafted(FIXED, loss))) is None
    assert speed(found(run(1, drafted("model:policy=goodput", loss)))) == 0.6


@pytest.mark.parametrize(("limit", "free"), [(None, 1000), (300, 300), (5000, 1000)])
def test_a_containers_limit_and_the_memory_of_gpus_count(
    limit: int | None, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (
        Gpu("NVIDIA", "H200", 10**11, 10**10),
        Gpu("AMD", "unknown"),
        Gpu("Apple", "M", free=5, shared=True),
    )
    monkeypatch.setattr("paceline.hardware.gpus.read", lambda files: found)
    memory = MemoryInfo(2000, 1000, limit=limit)
    monkeypatch.setattr("paceline.doctor.drafts.read_memory", lambda _: memory)
    assert (available_memory(), available_memory(gpus=True)) == (free, free + 10**10)
