"""Which settings are tried, in what order, and which one is named."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import machine_trees as trees
import paceline
from paceline.lab import thread_trials
from paceline.lab.thread_trials import (
    MOST,
    PROMPT,
    ROUNDS,
    Affinity,
    Setting,
    Trial,
    affinity,
    best,
    pinnable,
    settings_for,
    tried,
)
from paceline.machine.hardware import containers, cores
from paceline.machine.hardware.files import Files
from paceline.machine.hardware.placement import placeable
from timed import TimedTarget


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


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_trials, "SECONDS", 0.0)


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[int] | None]:
    """Where the threads were kept to; None: they were given their own back."""
    at: list[frozenset[int] | None] = []

    @contextmanager
    def kept() -> Iterator[Affinity]:
        try:
            yield at.append
        finally:
            at.append(None)

    monkeypatch.setattr(thread_trials, "affinity", kept)
    return at


@pytest.mark.usefixtures("briefly")
def test_settings_are_tried_in_rounds_and_leave_the_places_as_they_were(
    places: list[frozenset[int] | None],
) -> None:
    told, shares = [1], list[float]()
    target = TimedTarget(lambda n, _: 1.0 / told[-1])
    settings = [Setting(1), Setting(2, (0, 3), "there"), Setting(4)]
    found = tried(target, told.append, settings, progress=shares.append, clock=target.clock)
    assert told[1:] == [1, 2, 4, 4, 2, 2, 4]  # one thread is four times slower than four
    assert len(shares) == ROUNDS * 3
    assert places[2] == frozenset({0, 3})
    assert places.index(None) == len(places) - 1
    assert [trial.decode_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert [trial.prompt_ratio for trial in found] == pytest.approx([0.25, 0.5, 1.0])
    assert [trial.decode for trial in found] == pytest.approx([1.0, 2.0, 4.0])
    assert [trial.prompt for trial in found] == pytest.approx([16.0, 32.0, 64.0])
    assert found[1].as_dict() == {
        "threads": 2,
        "cpus": (0, 3),
        "where": "there",
        "spread": False,
        "prompt": found[1].prompt,
        "decode": found[1].decode,
        "prompt_ratio": pytest.approx(0.5),
        "decode_ratio": pytest.approx(0.5),
    }


@pytest.mark.usefixtures("briefly")
def test_progress_that_raises_ends_it_and_gives_the_places_and_the_session_back(
    places: list[frozenset[int] | None],
) -> None:
    def stop(_share: float) -> None:
        raise KeyboardInterrupt

    target = TimedTarget(lambda n, _: 1.0)
    with pytest.raises(KeyboardInterrupt):
        tried(target, lambda _: None, [Setting(1)], progress=stop)
    assert places[-1] is None
    assert target.forgot == 1


@pytest.mark.usefixtures("briefly")
def test_a_setting_with_memory_spread_runs_the_copy() -> None:
    usual, target, copy = (TimedTarget(lambda n, _: 1.0) for _ in range(3))
    settings = [Setting(1), Setting(1, spread=True)]
    found = tried(target, lambda _: None, settings, spread=copy, clock=lambda: target.now + copy.now)
    assert [trial.setting.spread for trial in found] == [False, True]
    tried(usual, lambda _: None, [Setting(1)], clock=usual.clock)
    assert usual.passes == target.passes
    assert target.passes.total() > copy.passes.total() > 3 * ROUNDS  # target: one more, which tells how many


@pytest.mark.parametrize("n_ctx", [2, 12, 48, 4096])
@pytest.mark.parametrize("rollback", ["free", "none"])
def test_passes_stay_within_the_context_and_below_the_most(n_ctx: int, rollback: str) -> None:
    target = TimedTarget(lambda n, _: 1e-9, n_ctx=n_ctx, rollback=rollback)
    (trial,) = tried(target, lambda _: None, [Setting(1)], clock=target.clock)
    assert target.longest <= n_ctx
    assert trial.prompt == pytest.approx(1e9 * min(PROMPT[1], n_ctx // 2), rel=1e-6)


def test_a_thread_that_ends_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.lab.thread_trials.pinnable", lambda: True)
    monkeypatch.setattr("paceline.lab.thread_trials._tasks", lambda: [7, 0])
    monkeypatch.setattr(os, "sched_getaffinity", gone, raising=False)
    kept: list[tuple[int, set[int]]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *args: kept.append(args), raising=False)
    with affinity():
        pass
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
    with affinity() as keep_to:
        keep_to(one)
        go.set()
        worker.join()
        assert os.sched_getaffinity(0) == one
    assert seen == [one]
    assert os.sched_getaffinity(0) == before


@pytest.mark.usefixtures("briefly")
@pytest.mark.skipif(not placeable(), reason="this system does not let us say where memory lies")
def test_a_second_copy_lies_on_the_nodes_named_and_is_closed(
    models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.cli.doctor_machine import try_threads

    settings = [Setting(1), Setting(1, (), "anywhere, memory spread", spread=True)]
    with paceline.load(models / "target.gguf", drafters="none", threads=1) as llm:
        tried = try_threads(llm, settings, [0], lambda *_: None)["tried"]
        said = capsys.readouterr().err
        assert [one["spread"] for one in tried] == ([False] if "not tried" in said else [False, True])
        assert llm.target.threads == 1  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(type(llm.target), "memory", property(lambda _: 10**18))
            assert len(try_threads(llm, settings, [0], lambda *_: None)["tried"]) == 1
        assert "a second copy takes 1,000,000,000.00 GB" in capsys.readouterr().err
        monkeypatch.setattr("paceline.machine.hardware.bandwidth.free_memory", lambda: 1000)
        assert len(try_threads(llm, settings, [0], lambda *_: None)["tried"]) == 1
        assert "a second copy takes" in capsys.readouterr().err


@pytest.mark.usefixtures("briefly")
def test_a_models_threads_are_changed(models: Path) -> None:
    from paceline.engines.llama import LlamaTarget
    from paceline.engines.llama.binding import llama_cpp

    target = LlamaTarget(models / "target.gguf", threads=1)
    try:
        target.use_threads(2)
        assert llama_cpp().llama_n_threads(target._context) == 2
        target.use_threads(1)
        found = tried(target, target.use_threads, [Setting(1)])
    finally:
        target.close()
    assert found[0].decode > 0
    assert (found[0].decode_ratio, found[0].prompt_ratio) == (1.0, 1.0)
