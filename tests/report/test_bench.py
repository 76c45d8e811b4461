"""A bench as tables: exact text, no figure without proof, no conclusion beyond what is known."""

from __future__ import annotations

import io

import pytest

from bench_records import drafted, failed, plain, record
from paceline.report.bench import blocks, conclusion, header, notes, write

LOOKUP = drafted("lookup", (2.0, 1.9, 2.1))


def test_a_bench_is_a_header_a_table_and_a_conclusion() -> None:
    out = io.StringIO()
    write(record([plain(), LOOKUP, failed("suffix")]), out)
    assert out.getvalue().splitlines() == [
        "target    Tiny (llama 1B Q4_0), 1.1 GB, fingerprint 0123456789abcdef",
        "engine    paceline 0.4.0, llama-cpp-python 0.3.36",
        "machine   A processor, Linux x86_64, threads 2, no flash attention",
        "suite     code, 8 items, 5 rounds, temperature 0",
        "",
        "                                        accept.  accept.  TTFT  TPOT  draft",
        "method         t/s             speedup     rate   length    ms    ms      %  memory      lossless",
        "plain   40.0 ± 0.2               1.00x        -        -   123  25.0      -  851 MB     identical",
        "lookup  80.0 ± 0.5  2.00x [1.90, 2.10]     0.60     3.40   130  12.5     12  1.6 GB    1 near-tie",
        "suffix           -                   -        -        -     -     -      -       -  NOT LOSSLESS",
        "",
        "suffix: NOT LOSSLESS: code/3 from token 17 on",
        "fastest: lookup, 2.00x [1.90, 2.10] plain decoding",
    ]


def test_a_system_that_is_not_lossless_shows_no_figure_even_where_there_is_one() -> None:
    loose = record([plain(), LOOKUP])
    loose["results"][1] |= {"lossless": False, "verdict": "NOT LOSSLESS: code/1 from token 2 on"}
    (table,) = blocks(loose)
    assert table.rows[1] == ("lookup", *["-"] * 8, "NOT LOSSLESS")
    assert conclusion(loose) == "no conclusion: no system beside plain decoding has a speed"


def test_several_categories_are_a_matrix_with_a_row_a_system() -> None:
    results = [
        plain(41.0, "code"),
        drafted("lookup", (2.5, 2.4, 2.6), "code"),
        failed("suffix", "code"),
        plain(39.0, "json-extraction"),
        drafted("lookup", (1.02, 0.98, 1.06), "json-extraction"),
        failed("suffix", "json-extraction"),
        plain(),
        drafted("lookup", (1.7, 1.6, 1.8)),
        failed("suffix"),
    ]
    speeds, matrix = blocks(record(results))
    assert [row[0] for row in speeds.rows] == ["plain", "lookup", "suffix"]
    assert matrix.columns == ("method", "code", "json-\nextraction", "all")
    assert matrix.rows == (
        ("plain", "41.0", "39.0", "40.0"),
        ("lookup", "2.50x", "~1.02x", "1.70x"),
        ("suffix", "-", "-", "-"),
    )


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        (
            [(0.8, 0.7, 0.9)],
            "no gain: plain decoding is fastest here; next is a, 0.80x [0.70, 0.90] plain decoding",
        ),
        (
            [(0.8, 0.7, 0.9), (1.1, 0.9, 1.3)],
            "no clear difference from plain decoding; highest is b, 1.10x [0.90, 1.30] plain decoding",
        ),
        ([(1.5, 1.4, 1.6), (1.2, 1.1, 1.3)], "fastest: a, 1.50x [1.40, 1.60] plain decoding"),
        (
            [(1.5, 1.4, 1.6), (1.6, 1.5, 1.7), (1.3, 1.2, 1.4)],
            "fastest: b, 1.60x [1.50, 1.70] plain decoding; no clear difference from a",
        ),
        ([], "no conclusion: no system beside plain decoding has a speed"),
    ],
)  # fmt: skip
def test_the_conclusion_says_what_the_intervals_allow(
    gains: list[tuple[float, float, float]], said: str
) -> None:
    results = [plain(), *(drafted(name, gain) for name, gain in zip("abc", gains, strict=False))]
    assert conclusion(record(results)) == said


def test_a_verdict_without_room_stands_below_once_for_all_it_is_about() -> None:
    it = record([drafted("a", (1.0, 0.9, 1.1)), drafted("b", (1.0, 0.9, 1.1)), failed("c"), plain()])
    for result in it["results"][:2]:
        result["verdict"] = "nothing drafted where sampling was checked"
    assert notes(it) == [
        "a, b: nothing drafted where sampling was checked",
        "c: NOT LOSSLESS: code/3 from token 17 on",
    ]
    assert [row[-1] for row in blocks(it)[0].rows] == ["yes", "yes", "NOT LOSSLESS", "identical"]


def test_a_bench_that_was_cut_short_says_so() -> None:
    assert header(record([], status="interrupted"))[-1] == (
        "status",
        "interrupted: what was measured until then",
    )
    out = io.StringIO()
    write(record([], status="failed"), out)
    assert out.getvalue().splitlines()[-1] == "no conclusion: no system beside plain decoding has a speed"


def test_names_from_files_cannot_draw_on_the_terminal() -> None:
    evil = "\x1b[2J\nmodel"
    it = record([plain(category=evil), plain(category="b"), drafted(evil, (1.0, 0.9, 1.1)), plain()])
    it["provenance"]["suite"] = it["provenance"]["target"]["name"] = evil
    out = io.StringIO()
    write(it, out)
    assert "\x1b" not in out.getvalue()
    assert "Tiny" not in out.getvalue()
    assert "\\x1b[2J\\nmodel" in out.getvalue()
