"""Progress of reading a long prompt: a line on a terminal, removed afterwards.

Slow passes are reported; usual ones are not."""

from __future__ import annotations

import io
import sys

import pytest

from paceline.cli.completion import PrefillProgress
from paceline.cli.interrupts import Interrupts


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    tell = PrefillProgress(Interrupts())
    tell(0, 2776)
    assert screen.getvalue() == "\rreading the prompt: 0 of 2,776 tokens"
    tell(512, 2776)
    last = screen.getvalue().rpartition("\r")[2]
    assert last.startswith("reading the prompt: 512 of 2,776 tokens, ")
    assert last.endswith(" tokens/s")
    tell(2776, 2776)
    assert screen.getvalue().endswith(f"\r{' ' * len(last)}\r")
