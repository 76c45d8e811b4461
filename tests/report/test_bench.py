"""A bench as tables: exact text, no figure without proof, no conclusion beyond what is known."""

from __future__ import annotations

import io

import pytest

from bench_records import drafted, failed, plain, record
from paceline.report.bench import conclusion, write

LOOKUP = drafted("lookup", (2.0, 1.9, 2.1))


def test_a_bench_is_a_header_a_table_and_a_conclusion() -> None:
    out = io.StringIO()
    write(record([plain(), LOOKUP, failed("suffix")]), out)
    assert out.getvalue().splitlines() == [
        "target    Tiny (llama 1B Q4_0), 1.1 GB, fingerprint 0123456789abcdef",
        "engine    paceline 0.4.0, llama-cpp-python 0.3.36",
        "machine   A processor, Linux x86_64, threads 2, no flash attention",
        "suite     code, 8 items, 5 rounds, temperature 0",
        "file      run.jsonl",
        "",
        "                                        accept.  accept.  TTFT  TPOT  draft",
        "method         t/s             speedup     rate   length    ms    ms      %  memory      lossless",
        "plain   40.0 ± 0.2               1.00x        -        -   123  25.0      -  851 MB     identical",
        "lookup  80.0 ± 0.5  2.00x [1.90, 2.10]     0.60     3.40   130  12.5     12  1.6 GB    1 near-tie",
        "suffix           -                   -        -        -     -     -      -       -  NOT LOSSLESS",
        "",
        "suffix: NOT LOSSLESS: code/3 from token 17 on",
        "fastest: lookup 2.00x [1.90, 2.10] plain decoding",
    ]


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([(0.8, 0.7, 0.9)], "no gain: plain decoding is fastest here; next is a 0.80x [0.70, 0.90]"),
        (
            [(0.51, 0.5, 0.6), (0.71, 0.4, 1.2)],
            "no clear gain; undecided: b 0.71x [0.40, 1.20]; slower: a 0.51x [0.50, 0.60]",
        ),
        ([(1.1, 0.9, 1.3)], "no clear gain; undecided: a 1.10x [0.90, 1.30]"),
        ([(1.5, 1.4, 1.6), (1.2, 1.1, 1.3)], "fastest: a 1.50x [1.40, 1.60] plain decoding"),
        # A higher speedup that chance explains is no gain, and hides none.
        (
            [(1.2, 1.1, 1.3), (1.3, 0.7, 2.0), (0.7, 0.6, 0.8)],
            "fastest: a 1.20x [1.10, 1.30] plain decoding; no clear difference from b 1.30x [0.70, 2.00]",
        ),
        ([], "no conclusion: no system beside plain decoding has a speed"),
    ],
)  # fmt: skip
def test_the_conclusion_says_what_the_intervals_allow(
    gains: list[tuple[float, float, float]], said: str
) -> None:
    results = [plain(), *(drafted(name, gain) for name, gain in zip("abc", gains, strict=False))]
    assert conclusion(record(results)) == said


def test_names_from_files_cannot_draw_on_the_terminal() -> None:
    evil = "\x1b[2J\nmodel"
    it = record([plain(category=evil), plain(category="b"), drafted(evil, (1.0, 0.9, 1.1)), plain()])
    it["provenance"]["suite"] = it["provenance"]["target"]["name"] = evil
    out = io.StringIO()
    write(it, out)
    assert "\x1b" not in out.getvalue()
    assert "Tiny" not in out.getvalue()
    assert "\\x1b[2J\\nmodel" in out.getvalue()
