"""Tables for a terminal: exact text, nothing cropped in a pipe, 80 columns where it is shown."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from paceline.report import where
from paceline.report.table import comparison, listing, summary


def a_run(
    tokens: int, speed: float, drafted: int, accepted: int, stop_reason: str = "length"
) -> dict[str, Any]:
    steps = tokens - accepted
    return {
        "n_tokens": tokens,
        "prompt_tokens_per_second": None,
        "tokens_per_second": speed,
        "stop_reason": stop_reason,
        "stats": {
            "steps": steps,
            "drafted": drafted,
            "accepted": accepted,
            "acceptance_rate": accepted / drafted if drafted else None,
            "acceptance_length": 1 + accepted / steps,
            "by_source": {"lookup": {"drafted": drafted, "accepted": accepted}} if drafted else {},
        },
    }


def both(plain: dict[str, Any], drafted: dict[str, Any], **read: Any) -> dict[str, Any]:
    return {"plain": plain, "drafted": drafted, "prompt_tokens_per_second": None, **read}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS = [("suffix, lookup", "1,234,567", "0.98x [0.91, 1.05]"), ("model", "12", "1.42x [1.05, 2.59]")]
COLUMNS = ("draft", "tokens\na step", "speed-up")


@pytest.mark.parametrize("room", [20, 30, 40, 60, 80])
@pytest.mark.parametrize("n_left", [1, None])
def test_nothing_is_cropped_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, room: int, n_left: int | None
) -> None:
    monkeypatch.setenv("COLUMNS", str(room))
    out = Terminal()
    listing(COLUMNS, ROWS, out, n_left)
    said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    words = " ".join(said.split())
    assert all(part in words for row in ROWS for cell in row for part in cell.split())
    if room >= 40:
        assert max(map(len, said.splitlines())) <= room


def test_a_table_that_does_not_fit_has_a_line_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = Terminal()
    listing(COLUMNS, ROWS[1:], out, 1)
    assert out.getvalue() == "draft          model\ntokens a step  12\nspeed-up       1.42x [1.05, 2.59]\n"


def test_a_comparison_is_a_table_of_two_rows_and_the_verdict() -> None:
    out = io.StringIO()
    comparison(both(a_run(256, 40.0, 0, 0), a_run(256, 100.0, 200, 150)), "yes", out)
    assert out.getvalue().splitlines() == [
        "         tokens  tokens/s  speedup  acceptance rate  acceptance length",
        "plain       256      40.0    1.00x                -               1.00",
        "drafted     256     100.0    2.50x             0.75               2.42",
        "output identical: yes",
    ]


def test_how_fast_a_prompt_was_read_is_told_where_it_was_read() -> None:
    out, run = io.StringIO(), a_run(9, 40.0, 0, 0)
    read = {"n_read": 2776, "prompt_tokens_per_second": 74.06}
    comparison(both(run, run, **read), "yes", out)
    assert out.getvalue().splitlines()[-2] == "prompt 2,776 tokens, 74.1 tokens/s"
    assert summary(run | read) == "9 tokens, 40.0 tokens/s; prompt 2,776 tokens, 74.1 tokens/s"


def test_several_drafters_have_a_line_each() -> None:
    run = a_run(256, 100.0, 200, 150)
    parts = {"tried": 90, "proposed": 20, "right": 15, "drafted": 60, "accepted": 50}
    other = {"tried": 70, "proposed": 70, "right": 60, "drafted": 140, "accepted": 100}
    run["stats"]["by_source"] = {"lookup": parts, "model": other}
    out = io.StringIO()
    comparison(both(a_run(256, 40.0, 0, 0), run), "yes", out)
    assert out.getvalue().splitlines()[3:] == [
        "drafter  tried  proposed  right  drafted  accepted",
        "lookup      90        20     15       60        50",
        "model       70        70     60      140       100",
        "output identical: yes",
    ]


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_piped_listing_is_as_wide_as_it_needs_to_be(monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = io.StringIO()
    listing(("name", "path"), [("a", "/x" * 100), ("bcd", "[/y]")], out)
    assert out.getvalue().splitlines() == ["name  path", "a     " + "/x" * 100, "bcd   [/y]"]


def test_numbers_stand_right_and_words_left() -> None:
    out = io.StringIO()
    listing(("word", "number"), [("a", "1"), ("longer", "12345678")], out, 1)
    assert out.getvalue().splitlines() == ["word      number", "a              1", "longer  12345678"]


def test_a_summary_is_one_line_with_what_was_drafted() -> None:
    assert summary(a_run(10, 12.34, 0, 0)) == "10 tokens, 12.3 tokens/s"
    assert summary(a_run(10, 12.34, 8, 6)) == (
        "10 tokens, 12.3 tokens/s; acceptance rate 0.75 (lookup 6/8); acceptance length 2.50"
    )
    assert summary(a_run(10, 1.0, 0, 0, "context")).endswith("; the context is full (-c)")


def test_why_drafting_was_off_is_told_once_with_statistics_too() -> None:
    run = a_run(10, 12.34, 0, 0) | {"policy": {"why": "drafting was off", "calibration": {}}}
    run["stats"]["time"] = {"forward": 0.5}
    out = io.StringIO()
    out.write(summary(run))
    where.write(run, out)
    assert out.getvalue().count("drafting was off") == 1
