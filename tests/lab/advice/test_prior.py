"""What is expected of a draft before anything was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advice_facts import facts
from paceline.core.errors import UsageError
from paceline.lab.advice.prior import (
    BY_BITS,
    LEAST,
    MOST,
    TASKS,
    Range,
    bits_of,
    expected,
    kinship,
    quantised,
    size_ratio,
    task_of,
)

SMALL = facts("draft", billions=0.8)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_ranges_in_order_and_a_source(task: str) -> None:
    for it in (TASKS[task].model, TASKS[task].copied, TASKS[task].copier):
        assert 0.0 < it.low < it.likely < it.high < 1.0
    assert TASKS[task].source


def test_a_tenth_of_the_target_at_q8_is_what_the_table_says() -> None:
    found, said = expected("code", facts(), SMALL), TASKS["code"].model
    assert found.likely == pytest.approx(said.likely, abs=0.01)


def test_tasks_differ() -> None:
    likely = {
        task: expected(task, facts(), SMALL).likely for task in ("code", "chat", "prose", "translation")
    }
    assert sorted(likely, key=likely.__getitem__) == ["translation", "prose", "chat", "code"]


def test_an_unknown_task_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="--task poetry: choose from code, edit"):
        task_of("poetry")


@given(a=st.floats(0.01, 8), b=st.floats(0.01, 8))
def test_a_smaller_draft_is_never_expected_to_be_right_more_often(a: float, b: float) -> None:
    small, large = sorted((a, b))
    ours = [expected("any", facts(), facts("draft", billions=size)).likely for size in (small, large)]
    assert ours[0] <= ours[1]


def test_fewer_bits_never_gain_acceptance() -> None:
    losses = [quantised(f"Q{bits}_K") for bits in sorted(BY_BITS)]
    assert losses == sorted(losses, reverse=True)
    assert quantised("BF16") == quantised("") == 0.0
    assert quantised("Q2_K") > 10 * quantised("Q8_0")


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        *(("Q4_K_M", 4), ("IQ2_XXS", 2), ("UD-Q5_K_XL", 5), ("MXFP4", 4), ("TQ1_0", 1), ("Q8_0", 8)),
        *(("F16", None), ("BF16", None), ("", None), ("mostly strange", None)),
    ],
)
def test_bits_of_a_weight(kind: str, bits: int | None) -> None:
    assert bits_of(kind) == bits


def test_kin_is_told_by_names_without_their_numbers() -> None:
    assert kinship("qwen2.5-coder", "qwen2.5-coder") == (0.0, 0.0)
    related, stranger, nameless = (
        kinship(*pair)
        for pair in (("qwen2.5-coder", "qwen2.5"), ("deepseek-r1-distill-llama", "qwen3"), ("", "qwen3"))
    )
    assert 0.0 > related[0] > nameless[0] > stranger[0]
    assert related[1] == 0.0 < nameless[1]


def test_another_vocabulary_costs_acceptance_and_certainty() -> None:
    same, other = (expected("code", facts(), SMALL, mappable=mappable) for mappable in (False, True))
    assert other.likely < same.likely - 0.1
    assert other.likely - other.low > same.likely - same.low


def test_sizes_stand_in_for_parameters_that_are_not_known() -> None:
    assert size_ratio(facts(parameters=None), facts(billions=2.0)) == pytest.approx(4.0)
    assert size_ratio(facts(parameters=None, size=0), facts(billions=2.0)) == 10.0


@given(by=st.floats(-2, 2), wider=st.floats(0, 1))
def test_a_moved_range_stays_in_order_and_unsure(by: float, wider: float) -> None:
    it = Range(0.4, 0.6, 0.8).moved(by, wider=wider)
    assert LEAST <= it.low <= it.likely <= it.high <= MOST


@pytest.mark.parametrize("task", TASKS)
def test_the_documentation_has_the_tables_numbers(task: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / "pairs.md").read_text("utf-8")
    it = TASKS[task]
    cells = [
        f"{one.likely:.2f} ({one.low:.2f} to {one.high:.2f})" for one in (it.model, it.copied, it.copier)
    ]
    assert f"| {task} | {' | '.join(cells)} |" in text
