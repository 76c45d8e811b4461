"""Tables for a terminal: exact text, nothing cropped in a pipe, 80 columns where it is shown."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from paceline.report.table import comparison, details, summary, write_table


def a_run(
    tokens: int, speed: float, drafted: int, accepted: int, stop_reason: str = "length"
) -> dict[str, Any]:
    steps = tokens - accepted
    source = {"tried": 8, "proposed": 4, "right": 2}
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
            "by_source": {"lookup": source | {"drafted": drafted, "accepted": accepted}} if drafted else {},
            "time": {"draft": 1.0, "forward": 3.0},
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
    write_table(COLUMNS, ROWS, out, n_left)
    said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    words = " ".join(said.split())
    assert all(part in words for row in ROWS for cell in row for part in cell.split())
    if room >= 60:
        assert max(map(len, said.splitlines())) <= room


def test_a_comparison_is_a_table_of_two_rows_and_the_verdict() -> None:
    out = io.StringIO()
    comparison(both(a_run(256, 40.0, 0, 0), a_run(256, 100.0, 200, 150)), "yes", out)
    assert out.getvalue().splitlines() == [
        "                                                      acceptance  acceptance",
        "                           tokens  tokens/s  speedup        rate      length",
        "plain    ██████               256      40.0    1.00x           -        1.00",
        "drafted  ████████████████     256     100.0    2.50x        0.75        2.42",
        "output identical: yes",
    ]


def test_the_closing_line_has_speed_gain_and_sources() -> None:
    assert summary(a_run(10, 12.34, 0, 0)) == "12.3 tokens/s, plain decoding"
    drafted = a_run(10, 123.4, 8, 6)
    assert summary(drafted) == "123 tokens/s, drafted (lookup 60%)"
    drafted["plain_tokens_per_second"] = 50.0
    assert summary(drafted) == "123 tokens/s, about 2.5x plain decoding (lookup 60%)"
    assert summary(a_run(10, 1.0, 0, 0, "context")).endswith("the context is full (-c)")


def test_details_have_counts_and_rates() -> None:
    drafted = a_run(10, 12.34, 8, 6) | {"plain_tokens_per_second": 6.17, "n_cached": 3, "draft_n_cached": 2}
    assert details(drafted) == (
        "10 tokens; 3 tokens of the prompt reused; 2 tokens of the prompt reused by the draft; "
        "acceptance rate 0.75 (lookup 6/8); "
        "acceptance length 2.50; hit rate lookup 50% (2/4 right); efficiency 1.50"
    )
    assert details(a_run(1, 12.34, 0, 0)) == "1 token"


def test_columns_without_room_follow_in_further_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Terminal()
    columns = ("method", *(f"figure {i}" for i in range(5)))
    write_table(columns, [("suffix:n_draft=24", *("1.00x",) * 5)], out, 1)
    parts = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).split("\n\n")
    assert all(part.split()[0] == "method" and "suffix:n_draft=24" in part for part in parts)
    assert [part.count("figure") for part in parts] == [2, 2, 1]
    assert all(len(line) <= 40 for part in parts for line in part.splitlines())
