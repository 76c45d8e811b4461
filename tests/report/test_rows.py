"""Results for other programs: every figure as it is, and nothing that JSON does not know."""

from __future__ import annotations

import csv
import io
import json
import math

from bench_records import drafted, failed, plain, record
from paceline.report.rows import jsonl, write_csv

RESULTS = [
    plain(category="a,\n\"b\"", point={"n_draft": 8}),
    drafted("lookup", (2.0, 1.9, 2.1), point={"threads": 2}, theory={"leviathan": 2.25}),
    failed("suffix"),
]  # fmt: skip


def test_csv_has_a_line_a_result_and_reads_back() -> None:
    out = io.StringIO(newline="")
    write_csv(record(RESULTS), out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue(), newline="")))
    assert [row["system"] for row in rows] == ["plain", "lookup", "suffix"]
    assert rows[0]["category"] == 'a,\n"b"'
    assert [row["point.n_draft"] for row in rows] == ["8", "", ""]
    assert [row["point.threads"] for row in rows] == ["", "2", ""]
    lookup = {name: rows[1][name] for name in ("speedup", "speedup_low", "speedup_high", "theory.leviathan")}
    assert lookup == {
        "speedup": "2.0",
        "speedup_low": "1.9",
        "speedup_high": "2.1",
        "theory.leviathan": "2.25",
    }
    assert rows[1]["memory"] == str(int(1.5 * 2**30))
    assert (rows[2]["speed"], rows[2]["speedup"], rows[2]["lossless"]) == ("", "", "False")
    assert not {"point", "theory"} & rows[0].keys()


def test_a_csv_of_nothing_is_an_empty_line() -> None:
    out = io.StringIO()
    write_csv(record([]), out)
    assert out.getvalue() == "\n"


def test_jsonl_has_a_result_a_line_as_it_was_found() -> None:
    it = record(RESULTS)
    assert [json.loads(line) for line in jsonl(it)] == it["results"]
    assert all("\n" not in line for line in jsonl(it))


def test_jsonl_is_strict() -> None:
    it = record([drafted("a", (math.inf, math.nan, 1.0), point={"x": [-math.inf, 1.5]}, speed=math.nan)])
    (line,) = jsonl(it)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    said = json.loads(line, parse_constant=refuse)
    assert said["speedup"] == {"value": None, "low": None, "high": 1.0}
    assert (said["point"], said["speed"]) == ({"x": [None, 1.5]}, None)
