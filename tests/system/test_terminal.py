"""Text wraps between words."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.system.terminal import WordWrap, wrapped

WIDTH = 20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(text: str) -> list[str]:
    """Return what a terminal shows of text with the two control sequences that WordWrap uses."""
    lines = [""]
    for part in re.findall(r"\x1b\[\d+D|\x1b\[K|\n|[^\x1b\n]", text):
        if part == "\n":
            lines.append("")
        elif part.endswith("D"):
            lines[-1] = lines[-1][: -int(part[2:-1])]
        elif not part.endswith("K"):
            lines[-1] += part
    return lines


@given(st.lists(st.text("abcdefgh", min_size=1, max_size=WIDTH - 2), min_size=1), st.integers(1, 7))
def test_streamed_words_are_never_broken_and_no_line_is_too_long(words: list[str], size: int) -> None:
    text, wrap = " ".join(words), WordWrap(WIDTH)
    streamed = "".join(wrap.feed(text[i : i + size]) for i in range(0, len(text), size))
    lines = screen(streamed)
    assert " ".join(lines).split() == words
    assert all(len(line.rstrip()) < WIDTH for line in lines)


def test_a_tab_counts_as_the_cells_that_it_takes() -> None:
    assert WordWrap(WIDTH).feed("name\tvalue\tlonger") == "name\tvalue\tlon\x1b[3D\x1b[K\nlonger"


def test_code_keeps_its_lines() -> None:
    text = "```\nif some and other and third and fourth:\n    pass\n```\n"
    assert WordWrap(WIDTH).feed(text) == text


def test_only_a_terminal_gets_wrapped_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    text = "  a note with words and /a/path/that/is/longer/than/a/line"
    assert wrapped(text, io.StringIO()) == text
    lines = wrapped(text, Terminal()).split("\n")
    assert len(lines) > 2
    assert " ".join(lines).split() == text.split()
    assert all(line.startswith("  ") for line in lines)
