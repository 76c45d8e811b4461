"""Progress where stderr is no terminal."""

from __future__ import annotations

import pytest

from paceline.cli import progress
from paceline.cli.interrupts import Interrupts


def run() -> None:
    with Interrupts() as interrupts, progress.progress({"greedy": 4}, interrupts) as tick:
        for _ in range(4):
            tick("greedy")


def test_without_a_terminal_progress_is_a_line_per_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    assert capsys.readouterr().err == ""  # a short command
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    run()
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"greedy: {n}%" for n in (25, 50, 75, 100)]


def test_without_a_total_the_line_counts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Interrupts() as interrupts, progress.progress({"tensors": progress.UNKNOWN}, interrupts) as tick:
        tick("tensors")
    assert "tensors: 1," in capsys.readouterr().err
