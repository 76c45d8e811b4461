"""The power of the sampled check: each classic mistake is detected with fewer than the default runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.bench.certify import frequencies, sampled
from paceline.bench.certify.sampled import SampledCheck, check_sampled
from paceline.config import Drafting
from planted import CHAIN, GREEDY, TREE, Change, V, mistakes, toy_loop, unchanged

MISTAKES = mistakes(V)


def check(drafting: Drafting, change: Change = unchanged, seed: int = 0, runs: int = 600) -> SampledCheck:
    return check_sampled(*toy_loop(drafting, change), 4, runs, seed, lambda: None)


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the search for the smallest bias."""
    monkeypatch.setattr(frequencies, "TRIALS", 2)
    monkeypatch.setattr(sampled, "ENDINGS", 10)
    monkeypatch.setattr(sampled, "CHUNK", 50)


@pytest.mark.parametrize(
    "drafting",
    [TREE, GREEDY, pytest.param(replace(TREE, verify="recursive"), marks=pytest.mark.slow),
     pytest.param(replace(CHAIN, verify="token", p_min=0.0), marks=pytest.mark.slow)],
    ids=lambda d: f"{d.verify}, width {d.width}, temperature {d.temperature}, p_min {d.p_min}",
)  # fmt: skip
def test_what_is_exact_passes(drafting: Drafting) -> None:
    found = check(drafting, runs=100)
    assert found.passed
    assert 0 < found.accepted < found.drafted
    assert found.runs == 4 * 100


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_classic_mistake_is_caught(name: str) -> None:
    mistake = MISTAKES[name]
    with mistake.plant():
        assert not check(mistake.drafting, mistake.change).passed
