"""How far a long prompt is read: a line on a terminal, gone afterwards; elsewhere one every few seconds."""

from __future__ import annotations

import io
import sys

import pytest

from paceline.cli.interrupts import Interrupts
from paceline.cli.reading import PrefillProgress


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Not a fixture: pytest sets stderr anew after those."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def test_a_terminal_shows_a_line_and_takes_it_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_on(monkeypatch)
    tell = PrefillProgress(Interrupts())
    tell(0, 2776)
    assert screen.getvalue() == "\rreading the prompt: 0 of 2,776 tokens"
    tell(512, 2776)
    last = screen.getvalue().rpartition("\r")[2]
    assert last.startswith("reading the prompt: 512 of 2,776 tokens, ")
    assert last.endswith(" tokens/s")
    tell(2776, 2776)
    assert screen.getvalue().endswith(f"\r{' ' * len(last)}\r")


def test_a_short_prompt_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = shown_on(monkeypatch)
    PrefillProgress(Interrupts())(0, 100)
    assert screen.getvalue() == ""


def test_elsewhere_there_is_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    tell = PrefillProgress(Interrupts(), clock=lambda: now)
    for number in range(8):
        now = 2.0 * number
        tell(512 * number, 4096)
    assert capsys.readouterr().err == (
        "paceline: reading the prompt: 1,536 of 4,096 tokens, 256 tokens/s\n"
        "paceline: reading the prompt: 3,072 of 4,096 tokens, 256 tokens/s\n"
    )


def test_ctrl_c_stops_the_reading() -> None:
    pressed = Interrupts()
    pressed.pressed = True
    with pytest.raises(KeyboardInterrupt):
        PrefillProgress(pressed)(512, 4096)
