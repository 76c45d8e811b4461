"""Which draft comes first, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advice_facts import facts, known, passes
from paceline.core.errors import UsageError
from paceline.lab.advice.estimate import ESTIMATED
from paceline.lab.advice.past import Past
from paceline.lab.advice.prior import TASKS, Range
from paceline.lab.advice.ranking import advise
from paceline.lab.advice.row import Advice, Candidate, Known, Question
from paceline.machine.fit.known_pairs import KnownPair

TARGET = facts(billions=8.0)
SMALL = facts("small", billions=0.8)
PAIR = KnownPair(
    ("kin*",), (), 0, "hf.co/maker/kin-0.5B-GGUF:Q8_0", 500_000_000, "kin", "", "", "recalled", "seen"
)


def ranked(*candidates: Candidate, task: str = "code", how: Known | None = None, **more: Any) -> Advice:
    return advise(TARGET, candidates, Question(task), how or known(passes(0.1)), **more)


def names(advice: Advice) -> list[str]:
    return [row.reference for row in advice.rows]


def fitting(*names: str, **of: float) -> list[Candidate]:
    """Drafts that only differ in what a token of theirs costs."""
    return [Candidate(facts(name, billions=0.8), name, "compatible") for name in (*names, *of)]


@settings(max_examples=25)
@given(
    costs=st.lists(st.floats(0.001, 2.0), min_size=2, max_size=4),
    per_row=st.floats(0.0, 1.2),
    task=st.sampled_from(sorted(TASKS)),
)
def test_a_dearer_draft_never_ranks_above_an_equal_cheaper_one(
    costs: list[float], per_row: float, task: str
) -> None:
    drafts = {f"draft{i}": cost for i, cost in enumerate(costs)}
    advice = ranked(*fitting(*drafts), task=task, how=known(passes(per_row), drafts))
    order = [drafts[row.reference] for row in advice.rows if row.drafter == "model"]
    assert order == sorted(order)


def test_the_prediction_lies_in_its_range_which_never_ends_below_plain_decoding() -> None:
    for row in ranked(*fitting("draft")).rows:
        assert 1.0 <= row.speedup.low < row.speedup.likely < row.speedup.high


def test_what_nobody_has_measured_may_gain_nothing() -> None:
    """Neither what passes cost here nor how often drafts are right."""
    guessed = replace(passes(0.1), source=ESTIMATED)
    rows = ranked(*fitting("draft"), how=known(guessed)).rows
    assert len(rows) == 2
    assert all(row.speedup.low == 1.0 < row.speedup.likely for row in rows)
    assert all(row.speedup.low > 1.0 for row in ranked(*fitting("draft"), task="edit").rows)


def test_costs_that_are_estimated_widen_the_range() -> None:
    sure, unsure = (
        ranked(*fitting("draft"), how=known(target)).rows[0].speedup
        for target in (
            passes(0.1),
            replace(passes(0.1), best=passes(0.05).likely, worst=passes(0.3).likely, source=ESTIMATED),
        )
    )
    assert unsure.likely == sure.likely
    assert unsure.low < sure.low < sure.high < unsure.high


def test_where_rows_cost_what_a_pass_does_nothing_is_worth_drafting() -> None:
    for row in ranked(*fitting("draft"), how=known(passes(1.0))).rows:
        assert (row.n_draft, row.speedup) == (0, Range(1.0, 1.0, 1.0))
        assert row.needed is None


def test_the_task_decides_between_a_model_and_copying() -> None:
    how = known(passes(0.1), {"draft": 0.15})
    assert names(ranked(*fitting("draft"), task="edit", how=how))[0] == "suffix, lookup"
    assert names(ranked(*fitting("draft"), task="prose", how=how))[0] == "draft"


def test_what_was_measured_beats_what_is_expected() -> None:
    past = Past("model", Range(1.1, 1.2, 1.3), None, 5, 12, 1000)
    guessed, measured = fitting("guessed", "measured")
    alone = ranked(guessed).rows[0]
    assert alone.speedup.likely > 1.2
    advice = ranked(guessed, measured, how=known(passes(0.1), past={"measured": past}))
    row = next(row for row in advice.rows if row.reference == "measured")
    assert (row.speedup, row.speedup_from, row.n_draft) == (past.speedup, "bench 12", 5)
    assert names(advice).index("guessed") < names(advice).index("measured")


def test_a_measured_acceptance_takes_the_priors_place() -> None:
    past = Past("model", None, Range(0.93, 0.94, 0.95), 5, 12, 1000)
    before = ranked(*fitting("draft")).rows[0]
    after = ranked(*fitting("draft"), how=known(passes(0.1), past={"draft": past})).rows[0]
    assert (after.acceptance, after.acceptance_from) == (past.acceptance, "bench 12")
    assert after.speedup.likely > before.speedup.likely
    assert after.speedup.high - after.speedup.low < before.speedup.high - before.speedup.low


def test_a_loss_that_was_measured_is_told_as_one() -> None:
    past = Past("suffix", Range(0.8, 0.9, 0.95), None, 31, 3, 1000)
    row = ranked(how=known(passes(0.1), past={None: past})).rows[0]
    assert (row.speedup.likely, row.n_draft, row.speedup_from) == (0.9, 0, "bench 3")


def test_the_lighter_quantisation_of_one_draft_is_not_the_better_draft() -> None:
    size = SMALL.size
    drafts = {"Q8_0": size, "Q4_K_M": round(size * 0.58), "Q2_K": round(size * 0.4)}
    candidates = [
        Candidate(facts(kind, billions=0.8, quantisation=kind, size=size), kind, "same")
        for kind, size in drafts.items()
    ]
    seconds = {kind: 0.05 * n / size for kind, n in drafts.items()}
    order = [
        name for name in names(ranked(*candidates, how=known(passes(0.1), seconds))) if "suffix" not in name
    ]
    assert order == ["Q8_0", "Q4_K_M", "Q2_K"]


def test_another_vocabulary_and_no_memory_come_last() -> None:
    one = Candidate(SMALL, "other words", "mappable")
    large = Candidate(facts("large", billions=7.9), "large", "same")
    fair = Candidate(facts("fair", billions=0.8), "fair", "same")
    room = TARGET.size + SMALL.size + 4096 * 2000
    advice = ranked(large, one, fair, how=known(passes(0.05), {"fair": 0.9}, available=room))
    assert names(advice) == ["suffix, lookup", "fair", "other words", "large"]
    assert [row.fits for row in advice.rows] == [True, True, True, False]
    assert advice.rows[2].speedup.likely > advice.rows[1].speedup.likely


def test_memory_is_weights_and_context_of_both() -> None:
    row = next(row for row in ranked(*fitting("draft")).rows if row.drafter == "model")
    assert row.memory == TARGET.size + SMALL.size + 4096 * 2000
    unknown = Candidate(facts("draft", billions=0.8, kv_bytes=0), "draft", "same")
    assert not next(row for row in ranked(unknown).rows if row.drafter == "model").memory_known
    half = advise(TARGET, fitting("draft"), Question("code", 4096, "q8_0"), known(passes(0.1)))
    assert half.rows[0].memory < row.memory


def test_what_does_not_fit_is_left_out() -> None:
    assert names(ranked(Candidate(SMALL, "other", "incompatible"))) == ["suffix, lookup"]


@pytest.mark.parametrize("memory", ["hybrid", "recurrent"])
def test_a_draft_whose_state_cannot_be_rolled_back_is_left_out(memory: str) -> None:
    draft = Candidate(facts("draft", billions=0.8, memory=memory), "draft", "compatible")
    assert names(ranked(draft)) == ["suffix, lookup"]


@pytest.mark.parametrize("memory", ["hybrid", "recurrent"])
def test_nothing_is_drafted_for_a_state_that_cannot_be_rolled_back(memory: str) -> None:
    target = facts(memory=memory)
    advice = advise(target, fitting("draft"), Question(), known(), [PAIR])
    assert (advice.rows, advice.downloads) == ((), ())
    assert memory in advice.refused


def test_what_could_be_downloaded_is_predicted_too() -> None:
    advice = ranked(pairs=[PAIR])
    (row,) = advice.downloads
    assert (row.reference, row.verdict, row.drafter) == (PAIR.draft, "download", "download")
    assert row.size == pytest.approx(0.53e9, rel=0.01)
    assert row.speedup.likely > 1.0
    assert not row.memory_known


def test_a_download_is_no_advice_where_as_good_a_draft_is_here() -> None:
    assert not ranked(*fitting("draft"), pairs=[PAIR], how=known(passes(0.1), {"draft": 1e-4})).downloads
    assert ranked(*fitting("draft"), pairs=[PAIR], how=known(passes(0.1), {"draft": 1.5})).downloads


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UsageError, match="--task haiku"):
        ranked(task="haiku")


def test_the_record_is_json() -> None:
    record = ranked(*fitting("draft"), pairs=[PAIR], how=known(passes(0.1), {"draft": 1.5})).as_dict()
    again = json.loads(json.dumps(record, allow_nan=False))
    assert again["drafts"][0]["speedup"]["likely"] == record["drafts"][0]["speedup"]["likely"]
    assert (again["task"], again["n_ctx"], again["costs_from"]) == ("code", 4096, "measured")
    assert again["target"]["name"] == "target"
