"""Which numbers of threads are tried, in what order, and which one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import machine_trees as trees
from paceline.doctor import thread_trials
from paceline.doctor.thread_trials import MOST, ROUNDS, Trial, best, counts_for, measure_thread_counts
from paceline.hardware import containers, cores
from paceline.hardware.files import SystemFiles
from timed import TimedTarget


def chosen(root: Path, quota: float | None = None) -> list[int]:
    files = SystemFiles(root)
    limits = containers.read(files) if quota is None else containers.Limits(cpus=quota)
    return counts_for(cores.read(files, None, "Linux"), limits)


def test_powers_of_two_all_cores_and_all_processors_are_tried(tmp_path: Path) -> None:
    assert chosen(trees.laptop(tmp_path / "a")) == [1, 2, 4, 6, 8, 12, 16]  # SMT
    server = chosen(trees.epyc(tmp_path / "b"))
    assert server == [1, 2, 4, 8, 16, 32]
    assert len(server) <= MOST


def test_a_quota_is_tried_on_both_of_its_sides_and_nothing_far_beyond(tmp_path: Path) -> None:
    assert chosen(trees.container(tmp_path / "a")) == [1, 2]
    assert chosen(trees.epyc(tmp_path / "b"), 5.5) == [1, 2, 4, 5, 6]


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_trials, "SECONDS", 0.0)


@pytest.mark.usefixtures("briefly")
def test_they_are_tried_in_rounds_and_what_is_far_behind_only_once() -> None:
    told, shares = [1], list[float]()
    target = TimedTarget(lambda n, _: 1.0 / told[-1])
    found = measure_thread_counts(target, told.append, [1, 2, 4], progress=shares.append, clock=target.clock)
    assert told[1:] == [1, 2, 4, 4, 2, 2, 4]  # one thread is four times slower than four
    assert len(shares) == ROUNDS * 3
    assert [trial.decode_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert [trial.prompt_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert [trial.decode for trial in found] == pytest.approx([1.0, 2.0, 4.0])
    assert [trial.prompt for trial in found] == pytest.approx([16.0, 32.0, 64.0])


def test_of_numbers_that_are_alike_the_fewest_threads_are_named() -> None:
    eight, four, two = (Trial(n, 1.0, ratio, 1.0, ratio) for n, ratio in ((8, 1.0), (4, 0.98), (2, 0.9)))
    assert best([eight, four, two]) == four
