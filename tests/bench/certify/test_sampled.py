"""The sampled check: exact loops pass, every classic mistake is caught, and a bias ends it early."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.bench.certify import sampled
from paceline.bench.certify.frequencies import TESTS
from paceline.bench.certify.sampled import FALSE_ALARM, SampledCheck, check_sampled
from paceline.drafters.none import NoDrafter
from paceline.settings import Drafting
from planted import CHAIN, GREEDY, TREE, V, mistakes, toy_loop

MISTAKES = mistakes(V)


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "ENDINGS", 10)


def check(seed: int = 0, runs: int = 250, contexts: int = 2) -> tuple[SampledCheck, int]:
    """Return the check and its number of ticks."""
    ticks: list[None] = []
    found = check_sampled(*toy_loop(CHAIN), contexts, runs, seed, lambda: ticks.append(None))
    return found, len(ticks)


def test_an_exact_loop_passes() -> None:
    found, ticks = check()
    assert found.passed
    assert 0 < found.accepted < found.drafted
    assert (found.contexts, found.runs, ticks) == (2, 500, 6)
    assert found.level == FALSE_ALARM / 9
    assert {test: len(values) for test, values in found.p_values.items()} == dict.fromkeys(TESTS, 3)
    assert found.overruns == found.ties == 0


def test_a_bias_that_is_seen_ends_the_check() -> None:
    with MISTAKES["residual p without the rejected token"].plant():
        found, ticks = check(runs=10_000)
    assert not found.passed
    assert (found.runs, ticks) == (200, 2)


def test_a_mistake_that_is_certain_is_not_looked_into_any_further() -> None:
    with MISTAKES["ties broken towards the highest id"].plant():
        found, _ = check(runs=10_000)
    assert not found.passed
    assert found.ties > 0
    assert found.runs == 200


def test_a_suspicion_makes_it_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "SUSPICIOUS", 2.0)  # which every p-value is below
    assert check(runs=100)[0].runs == 2 * sampled.LONGER * 100


def test_where_nothing_is_drafted_nothing_is_proved() -> None:
    loop, places = toy_loop(CHAIN)
    found = check_sampled(replace(loop, drafter=NoDrafter()), places, 2, 100, 0, lambda: None)
    assert found.drafted == 0
    assert not found.passed
    assert np.min([min(values) for values in found.p_values.values()]) > found.level


@pytest.mark.parametrize(
    "drafting",
    [TREE, GREEDY, pytest.param(replace(TREE, verify="recursive"), marks=pytest.mark.slow),
     pytest.param(replace(CHAIN, verify="token", p_min=0.0), marks=pytest.mark.slow)],
    ids=lambda d: f"{d.verify}, width {d.width}, draft_temp {d.draft_temp}, p_min {d.p_min}",
)  # fmt: skip
def test_what_is_exact_passes(drafting: Drafting) -> None:
    found = check_sampled(*toy_loop(drafting), 4, 100, 0, lambda: None)
    assert found.passed
    assert 0 < found.accepted < found.drafted
    assert found.runs == 4 * 100


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_classic_mistake_is_caught(name: str) -> None:
    mistake = MISTAKES[name]
    with mistake.plant():
        assert not check_sampled(*toy_loop(mistake.drafting, mistake.change), 4, 600, 0, lambda: None).passed
