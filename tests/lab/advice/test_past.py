"""What earlier benches say of a pair."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_records import drafted, failed, plain, record
from paceline.lab.advice.past import Past, _length, from_length, of_drafters
from paceline.lab.advice.prior import LEAST, MOST, Range

HERE = {"processor": "A processor", "threads": 2}
OURS, THEIRS = "a" * 64, "b" * 64
FIXED = "model:policy=fixed"


@dataclass(frozen=True)
class Run:
    id: int
    provenance: dict[str, Any]
    results: tuple[dict[str, Any], ...]
    status: str = "done"
    plan: dict[str, Any] = field(default_factory=dict)


def run(number: int, *results: Any, target: str = OURS, draft: str | None = THEIRS, **more: Any) -> Run:
    said = record([plain(), *results])
    provenance = said["provenance"] | {"target": {"fingerprint": target}}
    provenance["draft"] = None if draft is None else {"fingerprint": draft}
    return Run(number, provenance | more.pop("known", {}), tuple(said["results"]), **more)


def found(*runs: Run, task: str = "any", drafter: str = "model", draft: str | None = THEIRS) -> Past | None:
    return of_drafters(runs, OURS, draft, tuple(drafter.split("|")), task, HERE)


def known(past: Past | None) -> Past:
    assert past is not None
    return past


def speed(past: Past | None) -> float:
    gain = known(past).speedup
    assert gain is not None
    return gain.likely


def acceptance(past: Past | None) -> Range:
    it = known(past).acceptance
    assert it is not None
    return it


def test_the_speed_of_the_newest_run_of_the_pair() -> None:
    old, new = (run(n, drafted("model", (gain, 0.9, 2.2))) for n, gain in ((1, 1.5), (2, 1.25)))
    past = known(found(new, old))
    assert (past.run, past.system, past.n_draft) == (2, "model", 7)
    assert past.speedup == Range(0.9, 1.25, 2.2)


def test_of_several_settings_the_fastest() -> None:
    settings = [drafted("model", (1.2, 1, 2)), drafted("model:n_draft=12:p_min=0.2", (1.6, 1, 2))]
    past = known(found(run(1, *settings)))
    assert speed(past) == 1.6
    assert past.n_draft == 12


@pytest.mark.parametrize(
    "other",
    [
        run(1, drafted("model", (2, 1, 3)), target="c" * 64),
        run(1, drafted("model", (2, 1, 3)), draft="c" * 64),
        run(1, drafted("model", (2, 1, 3)), draft=None),
        run(1, drafted("model", (2, 1, 3)), status="interrupted"),
        run(1, failed("model")),
        run(1, drafted("lookup+model", (2, 1, 3))),
        run(1, drafted("model", (2, 1, 3), point={"k": 4})),
        run(1, drafted("model:mystery=1", (2, 1, 3))),
        run(1),
    ],
)
def test_what_is_of_something_else_says_nothing(other: Run) -> None:
    assert found(other) is None
    kept = run(2, drafted("model", (1.5, 1, 3)))
    assert speed(found(other, kept)) == 1.5


def test_a_task_has_its_own_speed() -> None:
    one = run(1, drafted("model", (1.2, 1, 2)), drafted("model", (2.0, 1, 3), "json"))
    assert (speed(found(one)), speed(found(one, task="json"))) == (1.2, 2.0)
    assert found(one, task="prose") is None


def test_what_copies_is_measured_with_any_draft_or_none() -> None:
    one = run(1, drafted("suffix", (1.3, 1, 2)), draft=None)
    assert speed(found(one, drafter="suffix", draft=None)) == 1.3


@pytest.mark.parametrize("other", [{"threads": 4}, {"machine": {"processor": "Another"}}, {"machine": None}])
def test_a_speed_of_another_machine_is_none_of_this_one_but_acceptance_is(other: dict[str, Any]) -> None:
    past = known(found(run(1, drafted(FIXED, (2, 1, 3), acceptance=0.75), known=other)))
    assert past.speedup is None
    assert past.acceptance is not None
    assert acceptance(past).likely == 0.75
    assert found(run(1, drafted("auto", (2, 1, 3)), known=other), drafter="auto") is None


def test_of_drafts_that_end_early_the_tokens_a_step_tell_the_acceptance() -> None:
    early = found(run(1, drafted("model", (2, 1, 3), acceptance=0.94, acceptance_length=2.61)))
    assert 0.68 < acceptance(early).likely < 0.78  # 0.77 where everything was drafted: docs/log/peers.md
    by_the_plan = run(1, drafted("model", (2, 1, 3), acceptance=0.8), plan={"drafting": {"p_min": 0.0}})
    whole = found(by_the_plan)
    assert acceptance(whole).likely == 0.8


@pytest.mark.parametrize("counted", [0.0, 1.0])
def test_an_acceptance_of_none_or_all_is_a_range_in_order(counted: float) -> None:
    past = found(run(1, drafted(FIXED, (2, 1, 3), acceptance=counted)))
    assert LEAST <= acceptance(past).low <= acceptance(past).likely <= acceptance(past).high <= MOST


def test_a_loss_counts_where_the_rule_could_have_declined() -> None:
    loss = (0.6, 0.5, 0.7)
    past = known(found(run(1, drafted(FIXED, loss, acceptance=0.7))))
    assert acceptance(past).likely == 0.7
    assert past.speedup is None
    assert found(run(1, drafted("suffix", loss)), drafter="suffix", draft=None) is None
    assert speed(found(run(1, drafted("model:policy=rate", loss)))) == 0.6


def test_the_speed_of_what_runs_by_itself_and_the_acceptance_of_what_tells_it() -> None:
    results = (drafted(FIXED, (1.1, 1, 2), acceptance=0.7), drafted("auto", (1.5, 1, 2)))
    past = known(found(run(1, *results), drafter="model|auto"))
    assert speed(past) == 1.5
    assert (past.system, acceptance(past).likely) == ("auto", 0.7)


def test_more_tokens_make_an_acceptance_more_certain() -> None:
    spreads = []
    for n_tokens in (1_000, 100_000):
        result = replace(drafted(FIXED, (2, 1, 3), acceptance=0.7), n_tokens=n_tokens)
        past = found(run(1, result))
        spreads.append(acceptance(past).high - acceptance(past).low)
    assert spreads[0] == pytest.approx(10 * spreads[1])


@given(a=st.floats(0.47, 0.97), n_draft=st.integers(1, 31))
def test_the_length_of_steps_gives_back_the_acceptance(a: float, n_draft: int) -> None:
    assert from_length(_length(a, n_draft), n_draft) == pytest.approx(a, abs=1e-6)
