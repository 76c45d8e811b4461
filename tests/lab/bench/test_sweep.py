"""Which points a sweep has, and where an open-ended one ends."""

from __future__ import annotations

import pytest

from paceline.core.errors import UsageError
from paceline.lab.bench.record import Result
from paceline.lab.bench.sweep import Point, every_drafter, parse


def result(rate: float | None) -> Result:
    return Result({}, "model", "", True, "identical", 1, 1, 10, acceptance_rate=rate)


def walk(text: str, rates: list[float | None]) -> list[object]:
    """What was varied at each point, where drafts were accepted at these rates."""
    sweep = parse(text)
    done: list[tuple[Point, list[Result]]] = []
    seen: list[object] = []
    while (point := sweep.after(done)) is not None:
        seen.append(next(iter(point.at.values()), None))
        done.append((point, [result(None), result(rates[len(done)])]))
    return seen


def test_without_a_sweep_there_is_one_point_that_changes_nothing() -> None:
    assert parse("").points == [Point()]
    assert walk("", [0.1]) == [None]
    assert walk("drafter", [0.1]) == [None]


def test_longer_drafts_are_tried_while_more_than_60_percent_are_accepted() -> None:
    assert walk("k", [0.9, 0.7, 0.61, 0.9]) == [8, 12, 16, 24]
    assert walk("k", [0.9, 0.6]) == [8, 12]
    assert walk("k", [None]) == [8]


def test_named_values_are_all_tried() -> None:
    assert walk("k=2,4", [0.1, 0.1]) == [2, 4]
    assert walk("temp=0,0.5", [0.1, 0.1]) == [0.0, 0.5]
    assert walk("draft-type=q8_0", [0.1]) == ["Q8_0"]


def test_each_sweep_changes_what_its_name_says() -> None:
    assert parse("k=3").points[0].drafting == {"n_draft": 3}
    assert parse("temp=0.5").points[0].temperature == 0.5
    assert parse("draft-temp=0.5").points[0].drafting == {"temperature": 0.5}
    assert parse("threads=3").points[0].models == {"threads": 3}
    assert parse("depth=100").points[0].depth == 100
    batch = parse("batch=4").points[0]
    assert (batch.batch, batch.models) == (4, {"sessions": 4})


def test_the_drafter_sweep_names_every_drafter_there_is_a_model_for() -> None:
    assert every_drafter(has_draft=True, has_stores=True) == (
        "plain,suffix,lookup,ngram,datastore,lookahead,model,cascade,auto,suffix+lookup+ngram+datastore+model"
    )
    assert every_drafter(has_draft=False, has_stores=False) == (
        "plain,suffix,lookup,ngram,lookahead,auto,suffix+lookup+ngram"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("speed", "choose from k, temp"),
        ("k=many", "'many' is no number"),
        ("k=0", "0 must be at least 1"),
        ("k=4,4", "twice"),
        ("temp=nan", "nan must be at least 0"),
        ("draft-type=Q3", "unknown weight type"),
        ("k=", "'' is no number"),
    ],
)
def test_what_cannot_be_swept_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)
