"""The tables and the plot of what passes cost."""

from __future__ import annotations

import io
from typing import Any

from paceline.report.doctor import blocks, notes, write
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.speedup_formulas import break_even

# Two AVX-512 cores, Q4_0: three rows cost more than four.
JAGGED = {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.43, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.05, 32: 8.0}
MODEL = {"name": "A model", "file": "a", "size": 1 << 30, "fingerprint": "f" * 64, "description": "Q4_0"}


def a_record(draft: PassCosts | None = None, **more: Any) -> dict[str, Any]:
    target = PassCosts({256: {n: s / 50 for n, s in JAGGED.items()}, 1024: {1: 0.03, 2: 0.04}})
    made = {"paceline": "1.0", "engine": "an engine", "target": MODEL, "machine": {}, "threads": 2}
    rest = {"format": 1, "stored": [], "noise": {"target": 1.1}, "doubts": {}, "provenance": made}
    found: dict[str, Any] = {"kinds": [], "run": None, "causes": [], "read_errors": []}
    return DecodingCosts(target, draft).as_dict() | rest | {"diagnosis": found} | more


def text(record: dict[str, Any]) -> str:
    file = io.StringIO()
    write(record, file)
    return file.getvalue()


def test_the_table_has_a_line_a_pass_and_a_table_a_depth() -> None:
    first, second = blocks(a_record())
    assert (first.title, second.title) == ("target, after 256 tokens", "target, after 1,024 tokens")
    rows = {row[0].strip(): row for row in first.rows}
    assert rows["1"][2:] == ("20.0", "1.00", "20.0", "-")
    assert rows["4"][2:] == ("36.6", "1.83", "9.2", "0.48")
    assert rows["3"][2:] == ("48.4", "2.42", "16.1", "0.79")
    assert rows["32"][1] == "█" * 16
    assert rows["1"][1] == "█" * 2


def test_with_a_draft_model_its_own_time_counts() -> None:
    record = a_record(PassCosts({256: {1: 0.004, 8: 0.01}}))
    first, _, draft = blocks(record)
    assert first.columns[-1] == "with\ndraft"
    by_rows = {row[0].strip(): row[-1] for row in first.rows}
    ratio = (1.83 / 50 + 3 * 0.004) / (1.0 / 50)
    assert by_rows["4"] == f"{break_even(ratio, 3):.2f}"
    assert by_rows["2"] == "0.99"
    assert draft.rows == (("   1", "█" * 6, "4.00", "1.00"), ("   8", "█" * 16, "10.00", "2.50"))
    assert "a token takes 4.00 ms, 20% of a row of the target" in text(record)


def test_from_times_that_tell_nothing_nothing_is_concluded() -> None:
    doubts = {"target": "times of one and the same pass lie 37.0x apart"}
    record = a_record(PassCosts.flat(0.004), noise={"target": 37.0}, doubts=doubts)
    assert notes(record) == [
        "target: times of one and the same pass lie 37.0x apart: the machine was too busy to tell; run again "
        "(--refresh) when it is calm"
    ]
    first = blocks(record)[0]
    assert first.columns == ("rows", "", "ms", "relative")
    assert "never" not in text(record)
