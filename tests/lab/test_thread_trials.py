"""Which settings are tried, in what order, and which one is named."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import machine_trees as trees
import paceline
from paceline.engines.toy import ToyTarget
from paceline.lab.thread_trials import (
    MOST,
    PASSES,
    ROUNDS,
    TURN,
    Affinity,
    Setting,
    Trial,
    Trials,
    best,
    pinnable,
    settings_for,
    tried,
    whereabouts,
)
from paceline.machine.hardware import containers, cores
from paceline.machine.hardware.files import Files
from paceline.machine.hardware.placement import placeable


def chosen(root: Path, *, pinning: bool) -> list[Setting]:
    files = Files(root)
    return settings_for(cores.read(files, None, "Linux"), containers.read(files), pinning)


def test_two_plain_cores_have_three_settings(tmp_path: Path) -> None:
    root = trees.write(tmp_path, {"sys/devices/system/cpu/online": "0-1"})
    for n in range(2):
        trees.write(tmp_path, {f"sys/devices/system/cpu/cpu{n}/topology/core_cpus_list": f"{n}"})
    assert chosen(root, pinning=True) == [Setting(1), Setting(1, (0,), "one core"), Setting(2)]
    assert chosen(root, pinning=False) == [Setting(1), Setting(2)]


def test_a_laptop_is_tried_with_its_fast_cores_alone_and_with_all_threads(tmp_path: Path) -> None:
    found = chosen(trees.laptop(tmp_path), pinning=True)
    assert Setting(4, (0, 2, 4, 6), "performance cores") in found
    assert Setting(4) in found
    assert Setting(12, (0, 2, 4, 6, *range(8, 16)), "one a core") in found
    assert found[-1] == Setting(16)  # SMT


def test_a_server_is_tried_node_by_node_within_bounds(tmp_path: Path) -> None:
    found = chosen(trees.epyc(tmp_path), pinning=True)
    assert len(found) <= MOST
    assert [s.where for s in found if s.where.startswith("node")] == [f"node {n}" for n in range(4)]
    assert Setting(4, tuple(range(4)), "node 0") in found
    assert {Setting(1), Setting(16), Setting(32)} <= set(found)


def test_memory_is_spread_where_there_are_nodes_and_the_system_lets_us(tmp_path: Path) -> None:
    files = Files(trees.epyc(tmp_path))
    server, limits = cores.read(files, None, "Linux"), containers.read(files)
    spread = [s for s in settings_for(server, limits, True, placing=True) if s.spread]
    assert [(s.threads, s.cpus) for s in spread] == [(server.physical, ())]
    assert not any(s.spread for s in settings_for(server, limits, True))
    assert len(settings_for(server, limits, True, placing=True)) <= MOST


def test_a_quota_is_tried_on_both_of_its_sides(tmp_path: Path) -> None:
    found = {s.threads for s in chosen(trees.container(tmp_path), pinning=False)}
    assert found == {1, 2}


def test_nothing_far_beyond_a_quota_is_tried(tmp_path: Path) -> None:
    files = Files(trees.epyc(tmp_path))
    server, limits = cores.read(files, None, "Linux"), containers.Limits(cpus=5.5)
    found = settings_for(server, limits, True, placing=True)
    assert max(setting.threads for setting in found) == 6
    assert [setting.threads for setting in found if setting.spread] == [5]
    assert Setting(4, tuple(range(4)), "node 0") in found


class Clock:
    """Runs on by what a thread is worth whenever it is looked at."""

    def __init__(self) -> None:
        self.now, self.threads = 0.0, 1

    def __call__(self) -> float:
        self.now += 1.0 / self.threads
        return self.now


def test_settings_take_turns_there_and_back_and_leave_the_places_as_they_were() -> None:
    clock = Clock()
    told: list[int] = []
    at: list[frozenset[int]] = []
    ended: list[int] = []

    def use(threads: int) -> None:
        clock.threads = threads
        told.append(threads)

    def affinity() -> Iterator[Affinity]:
        yield at.append
        ended.append(len(at))

    ticks: list[str] = []
    settings = [Setting(1), Setting(2, (0, 3), "there"), Setting(4)]
    found = tried(ToyTarget(), use, settings, seconds=0.0, tick=ticks.append, affinity=affinity, clock=clock)
    assert told == [1, 2, 4, 4, 2, 2, 4]  # one thread is four times slower than four
    assert ticks == [TURN] * ROUNDS * 3
    assert at[2] == frozenset({0, 3})
    assert ended == [len(at)]
    assert [trial.decode_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert [trial.prompt_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert found[1].as_dict() | {"prompt": 0, "decode": 0} == {
        "threads": 2,
        "cpus": (0, 3),
        "where": "there",
        "spread": False,
        "prompt": 0,
        "decode": 0,
        "prompt_ratio": pytest.approx(0.5),
        "decode_ratio": pytest.approx(0.5),
    }


def test_a_tick_that_raises_ends_it_and_gives_the_places_and_the_session_back() -> None:
    ended: list[bool] = []
    at: list[frozenset[int]] = []
    told: list[int] = []

    def affinity() -> Iterator[Affinity]:
        try:
            yield at.append
        finally:
            ended.append(True)

    def tick(_kind: str) -> None:
        raise KeyboardInterrupt

    target = ToyTarget()
    with pytest.raises(KeyboardInterrupt):
        tried(target, told.append, [Setting(1)], seconds=0.0, tick=tick, affinity=affinity)
    assert ended == [True]
    target.open().close()


class Counted(ToyTarget):
    passes = 0

    def forward(self, batch: Any, want: Any) -> Any:
        self.passes += 1
        return super().forward(batch, want)


def test_a_setting_with_memory_spread_runs_the_copy() -> None:
    target, copy = Counted(), Counted()
    settings = [Setting(1), Setting(1, spread=True)]
    found = tried(target, lambda _: None, settings, seconds=0.0, spread=copy)
    assert [trial.setting.spread for trial in found] == [False, True]
    assert target.passes > copy.passes - 1 > ROUNDS  # one to find out how many are worth it
    usual = Counted()
    tried(usual, lambda _: None, [Setting(1)], seconds=0.0)
    assert usual.passes == target.passes


def test_passes_stay_within_the_context() -> None:
    trials = Trials(ToyTarget(n_ctx=48), lambda: 0.0)
    assert (trials.longest, trials.passes) == (24, 24)
    assert Trials(ToyTarget(n_ctx=4096), lambda: 0.0).passes == PASSES[1]


def test_a_thread_that_ends_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.lab.thread_trials.pinnable", lambda: True)
    monkeypatch.setattr("paceline.lab.thread_trials._tasks", lambda: [7, 0])
    monkeypatch.setattr(os, "sched_getaffinity", gone, raising=False)
    kept: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *args: kept.append(args), raising=False)
    assert len(list(whereabouts())) == 1
    assert kept[-1] == (0, {3})


def gone(task: int) -> set[int]:
    if task == 7:
        raise ProcessLookupError
    return {3}


def trial(threads: int, ratio: float, cpus: tuple[int, ...] = (), *, spread: bool = False) -> Trial:
    return Trial(Setting(threads, cpus, spread=spread), 1.0, ratio, 1.0, ratio)


def test_of_settings_that_are_alike_the_fewest_threads_are_named() -> None:
    assert best([trial(8, 1.0), trial(4, 0.98), trial(2, 0.9)]) == trial(4, 0.98)
    assert best([trial(4, 1.0, (0, 1, 2, 3)), trial(4, 0.98)]) == trial(4, 0.98)
    assert best([trial(4, 1.0, spread=True), trial(4, 0.999)]) == trial(4, 0.999)
    assert best([trial(4, 1.0, spread=True), trial(4, 0.9)]).setting.spread
    assert best([trial(4, 1.0, (0, 1, 2, 3)), trial(4, 0.9)]).setting.cpus == (0, 1, 2, 3)


@pytest.mark.skipif(not pinnable(), reason="no affinity on this system")
def test_all_threads_are_kept_to_a_place_and_each_is_given_its_own_back() -> None:
    ready, go = threading.Event(), threading.Event()
    seen: list[set[int]] = []

    def work() -> None:
        ready.set()
        go.wait()
        seen.append(os.sched_getaffinity(0))

    before = os.sched_getaffinity(0)
    one = frozenset({min(before)})
    worker = threading.Thread(target=work)
    worker.start()
    ready.wait()
    for keep_to in whereabouts():
        keep_to(one)
        go.set()
        worker.join()
        assert os.sched_getaffinity(0) == one
    assert seen == [one]
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(not placeable(), reason="this system does not let us say where memory lies")
def test_a_second_copy_lies_on_the_nodes_named_and_is_closed(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.cli.doctor_machine import try_threads

    monkeypatch.setattr("paceline.lab.thread_trials.SECONDS", 0.0)
    settings = [Setting(1), Setting(1, (), "anywhere, memory spread", spread=True)]
    with paceline.load(models / "target.gguf", drafters="none", threads=1) as llm:
        tried = try_threads(llm, settings, [0], lambda _: None)["tried"]
        said = capsys.readouterr().err
        assert [one["spread"] for one in tried] == ([False] if "not tried" in said else [False, True])
        assert llm.target.threads == 1  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(type(llm.target), "memory", property(lambda _: 10**18))
            assert len(try_threads(llm, settings, [0], lambda _: None)["tried"]) == 1
        assert "a second copy takes 1000000000.0 GB" in capsys.readouterr().err
        monkeypatch.setattr("paceline.machine.hardware.bandwidth.free_memory", lambda: 1000)
        assert len(try_threads(llm, settings, [0], lambda _: None)["tried"]) == 1
        assert "a second copy takes" in capsys.readouterr().err


def test_a_models_threads_are_changed(models: Path) -> None:
    from paceline.engines.llama import LlamaTarget
    from paceline.engines.llama.binding import llama_cpp

    target = LlamaTarget(models / "target.gguf", threads=1)
    try:
        target.use_threads(2)
        assert llama_cpp().llama_n_threads(target._context) == 2
        target.use_threads(1)
        found = tried(target, target.use_threads, [Setting(1)], seconds=0.0)
    finally:
        target.close()
    assert found[0].decode > 0
    assert (found[0].decode_ratio, found[0].prompt_ratio) == (1.0, 1.0)
