"""Plots: each system a line that can be told apart without colours, the knee marked, and one HTML file that
needs nothing from anywhere else."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from bench_records import drafted, failed, plain, record
from paceline.core.errors import MissingExtraError, UsageError
from paceline.report.plot import axis, html, knee, lines, write_plot

GAINS = {2: 1.2, 4: 1.6, 8: 2.0, 16: 2.04, 24: 1.5}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def a_sweep() -> dict[str, Any]:
    results = []
    for k, gain in GAINS.items():
        at = {"n_draft": k}
        results += [
            plain(point=at),
            drafted("lookup", (gain, gain - 0.1, gain + 0.1), point=at),
            failed("suffix", point=at),
        ]
    return record(results)


def test_the_knee_is_the_smallest_x_within_3_percent_of_the_best() -> None:
    assert knee([(2, 1.2), (4, 1.94), (8, 2.0), (16, 1.96)]) == 4
    assert knee([(2, 1.2), (4, 1.93), (8, 2.0), (16, 1.96)]) == 8
    assert knee([(16, 1.96), (8, 1.8), (4, 1.95)]) == 4  # in any order
    assert knee([(3, 1.1)]) == 3


def test_a_method_that_is_slower_than_plain_decoding_has_no_knee() -> None:
    assert knee([(2, 0.6), (4, 0.97), (8, 1.0), (16, 0.98)]) is None


def test_the_knee_is_not_moved_by_a_machine_that_was_slower_at_one_point() -> None:
    """At 8 the machine had half of its speed; what was gained over plain decoding there is the most still."""
    results = []
    for k, gain in {2: 1.2, 4: 1.6, 8: 2.0, 16: 1.9}.items():
        pace = 0.5 if k == 8 else 1.0
        results += [
            plain(40 * pace, point={"n_draft": k}),
            drafted("lookup", (gain, gain - 0.1, gain + 0.1), point={"n_draft": k}, speed=40 * gain * pace),
        ]
    assert [line.knee for line in lines(record(results))] == [None, 8]


def test_speeds_of_other_sweeps_are_drawn_as_they_are_and_have_no_knee() -> None:
    results = [drafted("lookup", (1.5, 1.4, 1.6), point={"threads": n}, speed=10.0 * n) for n in (1, 2)]
    (line,) = lines(record(results))
    assert (line.y, line.knee, axis([line])) == ((10.0, 20.0), None, "tokens/s")


def test_a_line_has_every_point_of_a_lossless_system() -> None:
    first, second = lines(a_sweep())
    assert (first.name, first.plain, first.knee) == ("plain", True, None)
    assert (second.name, second.x, second.knee) == ("lookup", (2, 4, 8, 16, 24), 8)
    assert second.y == tuple(GAINS.values())
    assert first.y == (1.0,) * len(GAINS)


def test_where_two_things_were_swept_the_other_one_parts_the_lines() -> None:
    points = [{"n_draft": k, "quant": quant} for k in (2, 4) for quant in ("Q4_0", "BF16")]
    it = record([drafted("lookup", (1.2, 1.1, 1.3), point=point) for point in points])
    by_k = [(line.name, line.x, line.knee) for line in lines(it)]
    assert by_k == [("lookup (quant Q4_0)", (2, 4), 2), ("lookup (quant BF16)", (2, 4), 2)]
    by_quant = [(line.name, line.x, line.knee) for line in lines(it, "quant")]
    assert by_quant == [
        ("lookup (n_draft 2)", ("Q4_0", "BF16"), None),
        ("lookup (n_draft 4)", ("Q4_0", "BF16"), None),
    ]
    with pytest.raises(UsageError, match="'threads' was not swept: n_draft, quant"):
        lines(it, "threads")


def test_a_piped_plot_has_no_colours_and_tells_the_lines_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "")
    out = io.StringIO()
    write_plot(a_sweep(), out)
    said = out.getvalue()
    rows = said.splitlines()
    assert "\x1b" not in said
    assert rows[-2:] == ["· plain", "● lookup: knee (★) at n_draft 8"]
    assert max(map(len, rows)) <= 100
    canvas = "\n".join(rows[1:-5])
    # The knee's star stands in the place of the system's own mark.
    assert (canvas.count("·"), canvas.count("●"), canvas.count("★")) == (5, 4, 1)
    assert re.search(r"^\s+2 +4 +8 +16 +24$", said, re.MULTILINE)
    assert [row.strip() for row in (rows[0], rows[-3])] == ["times plain decoding", "n_draft"]


def test_on_a_terminal_the_plot_fits_and_has_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "60", "LINES": "22", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = Terminal()
    write_plot(a_sweep(), out)
    assert "\x1b[91m●\x1b[0m lookup" in out.getvalue()
    rows = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()
    assert max(map(len, rows)) <= 60
    assert len(rows) == 14 + 2  # room is left for what stands above, and two lines say what is what
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    write_plot(a_sweep(), out)
    assert "\x1b" not in out.getvalue()


def test_names_and_wide_ranges_are_plotted_too() -> None:
    for values in (["Q4_0", "Q8_0", "BF16"], [512, 2048, 32768], [0.0, 0.5, 1.0]):
        out = io.StringIO()
        swept = [drafted("lookup", (1.5, 1.4, 1.6), point={"x": value}) for value in values]
        write_plot(record(swept), out)
        ticks = out.getvalue().splitlines()[-3].split()
        assert ticks == [str(value) for value in values]


def test_without_a_sweep_there_is_nothing_to_plot() -> None:
    out = io.StringIO()
    write_plot(record([plain()]), out)
    write_plot(record([failed("x", point={"n_draft": 2})]), out)
    assert out.getvalue() == ""


def test_html_is_one_file_that_loads_nothing(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    it = a_sweep()
    it["provenance"]["target"]["name"] = "</script><b>model</b>"
    html(it, tmp_path / "bench.html")
    assert [path.name for path in tmp_path.iterdir()] == ["bench.html"]
    said = (tmp_path / "bench.html").read_text("utf-8")
    assert not re.search(r"""<(script|link)[^>]*(src|href)=["']?(https?:)?//""", said)
    assert "lookup, knee at 8" in said
    title = "<title>paceline bench, &lt;/script&gt;&lt;b&gt;model&lt;/b&gt;, suite code, by n_draft</title>"
    assert said.partition("</head>")[0].count("<title>paceline") == 1
    assert title in said
    assert "</script><b>" not in said
    assert said.count('"error_y"') >= 2


def test_html_without_a_sweep_has_bars(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    html(record([plain(), drafted("lookup", (2.0, 1.9, 2.1))]), tmp_path / "bench.html")
    said = (tmp_path / "bench.html").read_text("utf-8")
    assert '"x":["lookup"],"y":[80.0],"type":"bar"' in said


def test_html_without_plotly_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'paceline\[tune\]'"):
        html(a_sweep(), tmp_path / "bench.html")
    assert not list(tmp_path.iterdir())
