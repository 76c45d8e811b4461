"""The advised number of threads, and the reasons for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import machine_trees as trees
from paceline.hardware import cores, threads
from paceline.hardware.cores import EFFICIENCY, PERFORMANCE, Cores, Cpu
from paceline.hardware.files import Limits, SystemFiles, read_limits
from paceline.hardware.threads import ThreadAdvice, advise, choose_threads
from paceline.speculative.errors import UsageError


def advised(root: Path, allowed: frozenset[int] | None = None) -> ThreadAdvice:
    files = SystemFiles(root)
    return advise(cores.read(files, allowed, "Linux"), read_limits(files))


def test_one_thread_a_physical_core(tmp_path: Path) -> None:
    advice = advised(trees.epyc(tmp_path))
    assert advice.threads == 16
    assert advice.why == ("one thread a physical core (16)", "32 processors share 16 cores (SMT)")


@pytest.mark.parametrize(("quota", "expected"), [(0.5, 1), (1.99, 1), (2.0, 2), (64.0, 8)])
def test_a_quota_is_rounded_down_to_at_least_one(tmp_path: Path, quota: float, expected: int) -> None:
    root = trees.container(tmp_path)
    (root / "sys/fs/cgroup/kubepods.slice/pod7/cpu.max").write_text(f"{round(quota * 1e5)} 100000")
    assert advised(root).threads == expected


CORES = st.tuples(st.integers(0, 9), st.sampled_from((PERFORMANCE, EFFICIENCY)))


@given(st.lists(CORES, min_size=1, max_size=20), st.none() | st.floats(0.01, 50))
def test_there_is_a_core_and_time_for_every_thread(cpus: list[tuple[int, str]], quota: float | None) -> None:
    known = tuple(Cpu(n, core, kind=kind) for n, (core, kind) in enumerate(cpus))
    found = Cores(known, frozenset(range(len(cpus))))
    advice = advise(found, Limits(cpus=quota))
    assert 1 <= advice.threads <= found.physical
    assert advice.threads <= max(1, quota or 1e9)


def test_who_asks_for_more_than_a_quota_gets_it_and_for_more_than_cores_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "logical_cores", lambda: 4)
    monkeypatch.setattr(threads, "advised", lambda: ThreadAdvice(1, ()))
    assert choose_threads(4) == 4
    with pytest.raises(UsageError, match=r"5 threads .*this machine has 4 cores: use 1"):
        choose_threads(5)
    with pytest.raises(UsageError, match="at least 1"):
        choose_threads(0)


def test_threads_are_those_of_the_environment_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "logical_cores", lambda: 4)
    monkeypatch.setenv("PACELINE_THREADS", "3")
    assert (choose_threads(None), choose_threads(2)) == (3, 2)
    for wrong in ("5", "0", "many"):
        monkeypatch.setenv("PACELINE_THREADS", wrong)
        assert choose_threads(2) == 2
        with pytest.raises(UsageError, match="PACELINE_THREADS"):
            choose_threads(None)
