"""Costs of loaded models: measured once, kept, and updated by use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.llama_cpp import LlamaTarget
from paceline.hardware import cores as load_measurement
from paceline.profiling import pass_costs as costing
from paceline.profiling.pass_costs import cost_key, costs_of, doubt_about, never_pays, refresh, save
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy import costs as plausible
from paceline.speculative.policy.costs import DecodingCosts, PassCosts, implausibility
from paceline.speculative.tree import chain
from paceline.storage.costs import MeasurementEffort, load


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, however_busy: None) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    few = {"target": MeasurementEffort(0.2, (16,), (1, 2, 4)), "draft": MeasurementEffort(0.1, (16,), (1, 2))}
    monkeypatch.setattr(costing, "QUICK_EFFORT", few)
    monkeypatch.setattr(costing, "doubt_about", doubt_about)
    monkeypatch.setattr("paceline.storage.costs.implausibility", implausibility)
    return tmp_path / "home"


@pytest.fixture
def target(models: Path) -> Iterator[LlamaTarget]:
    loaded = LlamaTarget(models / "target.gguf", n_ctx=256)
    yield loaded
    loaded.close()


@pytest.fixture
def draft(models: Path) -> Iterator[LlamaTarget]:
    loaded = LlamaTarget(models / "draft.gguf", n_ctx=256)
    yield loaded
    loaded.close()


def test_costs_are_measured_once(
    target: LlamaTarget, draft: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = costs_of(target, draft)
    assert first.draft is not None
    assert (first.target.rows, first.draft.rows) == ((1, 2, 4), (1, 2))

    def never(*args: Any, **more: Any) -> None:
        pytest.fail("measured again")

    monkeypatch.setattr(costing, "measure", never)
    assert costs_of(target, draft).as_dict() == first.as_dict()
    alone = costs_of(target)
    assert (alone.target.as_dict(), alone.draft) == (first.target.as_dict(), None)


def test_what_use_has_taught_is_kept_and_the_effort_remembered(
    target: LlamaTarget, draft: LlamaTarget
) -> None:
    costs = costs_of(target, draft)
    assert costs.draft is not None
    for _ in range(3):
        costs.target.update(3, 16, 0.5)
        costs.draft.update(5, 16, 0.25)
    costs.step = 0.125
    save(target, draft, costs)
    again = costs_of(target, draft)
    assert again.draft is not None
    assert again.as_dict() == costs.as_dict()
    assert (3 in again.target.rows, 5 in again.draft.rows, again.step) == (True, True, 0.125)
    save(target, None, again)
    found = load(cost_key(target, "target"), pytest.fail)
    assert found is not None
    assert found.effort == costing.QUICK_EFFORT["target"]


def test_a_drafts_passes_keep_its_costs_up_to_date(target: LlamaTarget, draft: LlamaTarget) -> None:
    costs = costs_of(target, draft)
    assert costs.draft is not None
    assert draft.on_forward is None  # a replay's passes say nothing of what they take in use
    refresh(costs, draft)
    told: list[tuple[int, int, float]] = []
    observe = costs.draft.update
    assert draft.on_forward == observe

    def listen(rows: int, depth: int, seconds: float) -> None:
        told.append((rows, depth, seconds))
        observe(rows, depth, seconds)

    draft.on_forward = listen
    session = draft.open()
    session.extend([1, 2, 3, 4])
    grown = chain([5, 6, 7, 8], "test")
    for _ in range(3):
        draft.forward([(session, chain([5, 6], "test"))], RequiredOutputs())
        draft.forward([(session, grown)], RequiredOutputs())
        session.commit([0, 1, 2, 3], 9)
    session.close()
    # What was computed: the prompt's rest with its root and a draft of two, and then only what is new.
    assert [(rows, depth) for rows, depth, _ in told] == [(6, 4), (2, 4), (3, 9), (2, 9), (3, 14), (2, 14)]
    assert all(0 < seconds < 10 for _, _, seconds in told)
    costs.draft.update(3, 16, told[-2][2])  # the third of its kind
    assert 3 in costs.draft.rows
    assert target.on_forward is None  # the policy knows what those were for
    draft.on_forward = None
    refresh(costs_of(target), draft)
    refresh(costs, None)
    assert draft.on_forward is None


def test_costs_of_a_machine_that_is_too_busy_are_used_but_not_kept(
    target: LlamaTarget, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_measurement, "_busy_seconds", itertools.count(0, 100).__next__)
    messages: list[str] = []
    costs = costs_of(target, warn=messages.append)
    assert costs.target.rows == (1, 2, 4)
    save(target, None, costs)  # nor when the model is closed
    assert not (home / "costs").exists()
    assert len(messages) == 1
    assert "busy" in messages[0]


def test_two_rows_that_cost_less_than_one_are_used_as_one_and_not_stored(
    target: LlamaTarget, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plausible, "MAX_SINGLE_TOKEN_INVERSION", 1.15)
    measuring(monkeypatch, PassCosts({16: {1: 1e-3, 2: 0.73e-3, 4: 1.2e-3}}), GOOD)
    messages: list[str] = []
    costs = costs_of(target, warn=messages.append)
    assert costs.target.seconds(2, 16) == costs.target.seconds(1, 16)
    assert len(messages) == 1
    assert "one row takes 1.37 times" in messages[0]
    assert not (home / "costs").exists()
    assert costs_of(target, warn=messages.append).target.table == GOOD.table  # measured again by itself
    assert len(messages) == 1


def believing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that no machine can have."""
    monkeypatch.setattr(plausible, "MAX_SINGLE_TOKEN_FACTOR", 3.0)
    monkeypatch.setattr(plausible, "MAX_INVERSION_FACTOR", 3.0)


BAD = PassCosts({16: {1: 0.99e-3, 2: 0.3, 4: 1.8e-3}}, samples={16: {1: 20, 2: 3, 4: 5}})
GOOD = PassCosts({16: {1: 1e-3, 2: 1.2e-3, 4: 1.4e-3}})


def measuring(monkeypatch: pytest.MonkeyPatch, *found: PassCosts) -> list[float]:
    """Make each measurement return the next of `found`; return the list of their time limits in seconds."""
    left, spent = list(found), list[float]()

    def measure(target: Any, *, seconds: float, **how: Any) -> PassCosts:
        spent.append(seconds)
        return left.pop(0)

    monkeypatch.setattr(costing, "measure", measure)
    return spent


def test_a_curve_that_no_machine_has_is_used_but_not_kept(
    target: LlamaTarget, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    believing(monkeypatch)
    spent = measuring(monkeypatch, BAD, GOOD)
    costs = costs_of(target)
    assert costs.target.seconds(2, 16) < 2.2e-3  # hardly more than one by one
    assert not (home / "costs").exists()
    save(target, None, costs)
    assert not (home / "costs").exists()
    assert costs_of(target).target.table == GOOD.table
    assert costs_of(target).target.table == GOOD.table
    assert len(spent) == 2


def test_a_curve_that_no_machine_has_is_not_believed_where_it_was_kept(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(target, None, DecodingCosts(BAD))
    believing(monkeypatch)
    measuring(monkeypatch, GOOD)
    said: list[str] = []
    assert costs_of(target, warn=said.append).target.table == GOOD.table
    assert len(said) == 1
    assert "2 rows take 303 times what one row does); they are measured again" in said[0]


def test_what_a_slow_run_has_taught_is_not_kept(target: LlamaTarget) -> None:
    save(target, None, DecodingCosts(GOOD))
    save(target, None, DecodingCosts(PassCosts.flat(1.0), is_reliable=False))
    assert costs_of(target).target.table == GOOD.table


def test_where_no_draft_ever_pays_it_is_measured_once_more_and_longer(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costing, "never_pays", never_pays)
    dear = PassCosts({16: {1: 1e-3, 2: 2e-3, 4: 4e-3}})
    spent = measuring(monkeypatch, dear, dear)
    for _ in range(3):
        assert never_pays(costs_of(target).target)
    assert spent == pytest.approx([0.2, 0.4])


def test_a_second_measurement_replaces_the_first_unless_the_machine_was_busy(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costing, "never_pays", never_pays)
    monkeypatch.setattr(costing, "MAX_TIMING_JITTER", 2.0)
    dear = PassCosts({16: {1: 1e-3, 2: 2e-3, 4: 4e-3}})
    measuring(monkeypatch, dear, PassCosts(GOOD.table, noise=37.0), GOOD)
    for found in (dear, dear, GOOD, GOOD):
        assert costs_of(target).target.table == found.table
