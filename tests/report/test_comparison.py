"""Two benches: marks follow the intervals, and a comparison that cannot be made is not made."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

from bench_records import drafted, failed, plain, record
from paceline.report.comparison import changes, differences, write_comparison, write_runs


def changed(it: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of the record with another provenance."""
    out = copy.deepcopy(it)
    *parents, last = path.split(".")
    place = out["provenance"]
    for name in parents:
        place = place[name]
    place[last] = value
    return out


def changes_of(a: tuple[float, float, float], b: tuple[float, float, float]) -> list[str | None]:
    return [row["change"] for row in changes(record([drafted("x", a)]), record([drafted("x", b)]))]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ((2.0, 1.9, 2.1), (1.7, 1.6, 1.8), "REGRESSED"),
        ((2.0, 1.9, 2.1), (2.3, 2.2, 2.4), "improved"),
        ((2.0, 1.9, 2.1), (1.8, 1.7, 1.9), ""),  # the intervals touch
        ((2.0, 1.9, 2.1), (2.2, 2.1, 2.3), ""),
    ],
)
def test_only_intervals_apart_are_a_change(
    before: tuple[float, float, float], after: tuple[float, float, float], change: str
) -> None:
    assert changes_of(before, after) == [change]


def test_losing_or_gaining_losslessness_is_a_change() -> None:
    good, bad = record([drafted("x", (2.0, 1.9, 2.1))]), record([failed("x")])
    assert [row["change"] for row in changes(good, bad)] == ["REGRESSED"]
    assert [row["change"] for row in changes(bad, good)] == ["improved"]
    assert [row["change"] for row in changes(bad, bad)] == [""]


def test_rows_match_by_point_system_and_category() -> None:
    a = record([
        drafted("x", (2.0, 1.9, 2.1), "code", {"n_draft": 4, "threads": 1}),
        drafted("x", (1.0, 0.9, 1.1), "", {"n_draft": 4, "threads": 1}),
        drafted("x", (1.0, 0.9, 1.1), "", {"n_draft": 8, "threads": 1}),
        plain(),
    ])  # fmt: skip
    b = record([
        drafted("x", (3.0, 2.9, 3.1), "code", {"threads": 1, "n_draft": 4}),
        drafted("x", (1.5, 1.4, 1.6), "", {"threads": 1, "n_draft": 4}),
        drafted("y", (1.0, 0.9, 1.1), "", {"n_draft": 4, "threads": 1}),
        plain(60.0),
    ])  # fmt: skip
    assert [(row["system"], row["category"], row["ratio"]) for row in changes(a, b)] == [
        ("x", "", 1.5),
        ("plain", "", 1.5),
        ("x", "code", 1.5),
    ]


def test_a_comparison_shows_both_the_ratio_and_what_only_one_has() -> None:
    a = record([plain(), drafted("x", (2.0, 1.9, 2.1)), drafted("old", (1.0, 0.9, 1.1))])
    b = record([plain(), drafted("x", (1.5, 1.4, 1.6)), failed("new")], id=4)
    out = io.StringIO()
    write_comparison(a, changed(b, "paceline", "0.5.0"), out)
    assert out.getvalue().splitlines() == [
        "A  run 3, 2026-01-02T03:04:05+00:00, paceline 0.4.0, Tiny, done",
        "B  run 4, 2026-01-02T03:04:05+00:00, paceline 0.5.0, Tiny, done",
        "differs: paceline: 0.4.0 | 0.5.0",
        "",
        "method       A t/s       B t/s    B/A           A speedup           B speedup",
        "plain   40.0 ± 0.2  40.0 ± 0.2  1.00x                   -                   -",
        "x       80.0 ± 0.5  60.0 ± 0.5  0.75x  2.00x [1.90, 2.10]  1.50x [1.40, 1.60]  REGRESSED",
        "",
        "only in A: old",
        "only in B: new",
        "1 regressed, 0 improved, 1 without a clear change",
    ]


def test_another_machine_leaves_only_the_speedups_to_compare() -> None:
    a = record([drafted("x", (2.0, 1.9, 2.1))])
    out = io.StringIO()
    write_comparison(a, changed(a, "machine.processor", "Another"), out)
    said = out.getvalue()
    assert "differs: machine.processor: A processor | Another\n" in said
    assert "not the same machine or settings: speeds cannot be compared, only speedups\n" in said
    assert said.endswith("0 regressed, 0 improved, 1 without a clear change\n")


@pytest.mark.parametrize(
    ("path", "value", "what"),
    [
        ("suite", "chat", "suite"),
        ("request.temperature", 1.0, "request"),
        ("target.fingerprint", "f" * 64, "target"),
    ],
)
def test_other_work_gets_no_verdict(path: str, value: Any, what: str) -> None:
    a, b = record([drafted("x", (2.0, 1.9, 2.1))]), record([drafted("x", (1.0, 0.9, 1.1))])
    b = changed(b, path, value)
    assert [row["change"] for row in changes(a, b)] == [None]
    out = io.StringIO()
    write_comparison(a, b, out)
    assert f"not the same work ({what}): neither speeds nor speedups can be compared\n" in out.getvalue()
    assert out.getvalue().endswith("no verdict\n")


def test_a_model_is_the_same_under_another_name() -> None:
    a = record([plain()])
    assert differences(a, changed(a, "target.name", "Renamed")) == []
    other = changed(a, "draft", a["provenance"]["target"])
    assert differences(a, other) == [("draft", "-", "Tiny 0123456789abcdef")]


def test_benches_without_a_common_row_say_so() -> None:
    out = io.StringIO()
    write_comparison(record([plain()]), record([failed("x")]), out)
    assert out.getvalue().endswith("only in A: plain\nonly in B: x\nnothing was measured in both\n")


def test_the_list_of_runs_names_the_fastest_of_each() -> None:
    out = io.StringIO()
    first = record([plain(), drafted("x", (2.0, 1.9, 2.1)), drafted("y", (1.5, 1.4, 1.6))])
    write_runs([record([], id=4, status="running"), first], out)
    assert out.getvalue().splitlines() == [
        "run  started                    status   paceline  target  suite  fastest",
        "4    2026-01-02T03:04:05+00:00  running  0.4.0     Tiny    code   -",
        "3    2026-01-02T03:04:05+00:00  done     0.4.0     Tiny    code   x 2.00x [1.90, 2.10]",
    ]
