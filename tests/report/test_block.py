"""A table that does not fit is spread over several; nothing is cropped."""

from __future__ import annotations

import io
import re

import pytest

from paceline.report.block import Block

TABLE = Block(
    "", ("name", "first", "sec-\nond", "third"), (("a", "1", "22", "333"), ("bb", "4", "5", "6")), 1
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("room", "parts"),
    [
        (None, [[0, 1, 2, 3]]),
        (24, [[0, 1, 2, 3]]),
        (23, [[0, 1, 2], [0, 3]]),
        (16, [[0, 1], [0, 2], [0, 3]]),
        (1, [[0, 1], [0, 2], [0, 3]]),
    ],
)
def test_each_table_has_the_words_and_as_many_figures_as_fit(
    room: int | None, parts: list[list[int]]
) -> None:
    assert TABLE.parts(room) == parts


def test_a_narrow_terminal_shows_every_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "23")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    TABLE.write(out)
    shown = re.sub(r"\x1b\[\d*m", "", out.getvalue())
    assert [row.rstrip() for row in shown.splitlines()] == [
        "             sec-",
        "name  first   ond",
        "a         1    22",
        "bb        4     5",
        "",
        "name  third",
        "a       333",
        "bb        6",
    ]


def test_a_pipe_gets_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    out = io.StringIO()
    TABLE.write(out)
    assert out.getvalue().splitlines()[2] == "a         1    22    333"


def test_markdown_names_columns_on_one_line_and_escapes_bars() -> None:
    assert Block("", ("a", "json-\nline", "draft\n%"), (("x|y", "1", "2"),), 1).markdown() == [
        "| a | json-line | draft % |",
        "| --- | ---: | ---: |",
        "| x\\|y | 1 | 2 |",
    ]
