"""Tables on terminals that are too narrow for them: no number is cropped."""

from __future__ import annotations

import io
import re

import pytest

from bench_records import drafted, plain, record
from paceline.report import bench
from paceline.report.bench import write_runs
from paceline.report.table import listing


class Narrow(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS = [("suffix, lookup", "1,234,567", "0.98x [0.91, 1.05]"), ("model", "12", "1.42x [1.05, 2.59]")]
COLUMNS = ("draft", "tokens\na step", "speed-up")


@pytest.mark.parametrize("room", [20, 30, 40, 60, 80])
def test_no_number_is_cropped_however_narrow_the_terminal_is(
    monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(room))
    for n_left in (1, None):
        out = Narrow()
        listing(COLUMNS, ROWS, out, n_left)
        said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert "…" not in said
        words = " ".join(said.split())
        assert all(part in words for row in ROWS for cell in row for part in cell.split())
        if room >= 30:
            assert max(map(len, said.splitlines())) <= room


def test_where_columns_do_not_fit_each_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = Narrow()
    listing(COLUMNS, ROWS[1:], out, 1)
    assert out.getvalue() == "draft          model\ntokens a step  12\nspeed-up       1.42x [1.05,\n" + (
        " " * 15 + "2.59]\n"
    )


def test_the_list_of_runs_fits_80_columns_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = Narrow()
    write_runs([record([plain(), drafted("lookup", (2.0, 1.9, 2.1))])], out)
    said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).splitlines()
    assert said[1].split() == [
        "3", "2026-01-02", "03:04", "done", "code", "lookup", "2.00x", "[1.90,", "2.10]", "Tiny",
    ]  # fmt: skip


def test_a_bench_keeps_its_numbers_at_40_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Narrow()
    it = record([plain(), drafted("lookup+suffix+model", (2.0, 1.9, 2.1))])
    for block in bench.blocks(it):
        block.write(out)
    said = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert "…" not in said
    assert all(cell in said for cell in ("40.0 ± 0.2", "2.00x", "[1.90,", "1.50 GiB"))
    assert max(map(len, said.splitlines())) <= 40
