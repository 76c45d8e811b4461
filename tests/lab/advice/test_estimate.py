"""What passes cost: estimated, kept, measured now."""

from __future__ import annotations

from pathlib import Path

import pytest

from advice_facts import facts
from gguf_files import write_llama
from paceline import attention
from paceline.attention import Attention
from paceline.core.cost import Cost
from paceline.costing import key_of
from paceline.engines.openers import Way
from paceline.lab.advice.estimate import (
    CHEAPER,
    DEARER,
    ESTIMATED,
    MEASURED,
    PER_PASS,
    ROWS,
    STEP,
    Estimate,
    estimated,
    kept,
    measure,
)
from paceline.machine import costs
from paceline.machine.models.facts import Facts

FAST = 30e9


def curve(facts: Facts, bandwidth: float = FAST, threads: int = 2) -> list[float]:
    return estimated(facts, "target", bandwidth, threads).likely.curve(ROWS, 1000)


def test_one_token_reads_all_weights_once() -> None:
    small, large = (curve(facts(billions=b))[1] - PER_PASS for b in (1.0, 4.0))
    assert large == pytest.approx(4 * small)
    assert curve(facts(billions=1.0), 2 * FAST)[1] - PER_PASS == pytest.approx(small / 2)


def test_an_estimate_is_a_range_around_one_row() -> None:
    it = estimated(facts(), "target", FAST, 2)
    assert it.source == ESTIMATED
    best, likely, worst = (cost.curve(ROWS, 1000) for cost in (it.best, it.likely, it.worst))
    assert best[1] == likely[1] == worst[1]
    assert all(a < b < c for a, b, c in zip(best[2:], likely[2:], worst[2:], strict=True))


def test_the_measured_machine_is_estimated_as_it_was_measured() -> None:
    it = curve(facts())
    assert it[2] / it[1] == pytest.approx(2.04, rel=0.01)
    assert it[8] / it[1] == pytest.approx(3.24, rel=0.01)


def test_rows_are_cheap_where_many_cores_share_the_bandwidth_and_where_weights_are_whole() -> None:
    ratios = [
        it[8] / it[1] for it in (curve(facts()), curve(facts(quantisation="BF16")), curve(facts(), 400e9, 96))
    ]
    assert ratios[0] > 2 * ratios[1] > ratios[1]
    assert ratios[0] > 1.5 * ratios[2]


def test_a_mixture_reads_few_experts_for_one_row_and_more_for_several() -> None:
    a, b = curve(facts()), curve(facts(experts=128, experts_used=8))
    assert b[1] < a[1] / 5
    assert b[8] / b[1] > a[8] / a[1] + 1.0


def test_what_was_measured_has_no_range() -> None:
    cost = Cost({256: {1: 2.0, 2: 1.0, 4: 3.0}})
    it = Estimate.measured(cost, 0.25)
    assert (it.source, it.step) == (MEASURED, 0.25)
    assert it.best is it.likely is it.worst is cost
    assert Estimate.measured(cost).step == STEP


def test_the_token_of_a_draft_that_was_not_measured_is_a_range() -> None:
    it = estimated(facts(), "draft", FAST, 2)
    likely, best, worst = (cost.seconds(1, 1000) for cost in (it.likely, it.best, it.worst))
    assert likely == pytest.approx(curve(facts())[1])
    assert best == pytest.approx(CHEAPER * likely)
    assert worst == pytest.approx(DEARER * likely)


def way_of(path: Path, threads: int) -> Way:
    return Way(path, {"threads": threads})


def test_kept_costs_are_found_without_loading_the_model(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_kernels: None
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    way = way_of(models / "target.gguf", 1)
    assert kept(way, "target") is None
    record = costs.Kept(Cost({256: {1: 1.0, 2: 1.5}}), 0.125)
    costs.keep(key_of(way, "target"), record, lambda _: None)
    found = kept(way, "target")
    assert found is not None
    assert (found.likely.seconds(2, 256), found.step, found.source) == (1.5, 0.125, MEASURED)
    assert kept(way, "draft") is None
    assert kept(way_of(models / "target.gguf", 2), "target") is None
    attention.keep(way, [Attention(False, 512, 8, 1.0, 1.0, 1.0)], pytest.fail)  # from now on
    assert kept(way, "target") is None
    assert kept(way.but(flash_attention=True), "target") is None


def test_measuring_keeps_what_advice_then_finds(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, however_busy: None
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    target, draft, seen = models / "target.gguf", models / "draft.gguf", list[Path]()
    given = {"threads": 1, "gpu_layers": 0, "flash_attention": None, "cache_type": "f16", "n_ctx": 256}
    strange, notes = write_llama(tmp_path / "strange.gguf", arch="strange"), list[str]()
    found = measure(target, [strange, draft], given, seen.append, notes.append)
    assert seen == [target, strange, draft]
    assert set(found) == {target, draft}
    assert len(notes) == 1
    assert str(strange) in notes[0]
    small, now = kept(way_of(draft, 1), "draft"), found[draft].draft
    assert small is not None
    assert now is not None
    assert small.likely.seconds(1, 16) == pytest.approx(now.seconds(1, 16))
    assert kept(way_of(target, 1), "target") is not None
