"""Progress where stderr is no terminal."""

from __future__ import annotations

import pytest

from paceline.cli import progress
from paceline.cli.interrupts import Interrupts


def run(kind: str, n: int, ticks: int) -> None:
    with Interrupts() as interrupts, progress.progress({kind: n}, interrupts) as tick:
        for _ in range(ticks):
            tick(kind)


def test_without_a_terminal_progress_is_a_line_per_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("greedy", 4, 4)
    assert capsys.readouterr().err == ""  # a short command
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    run("greedy", 4, 4)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"greedy: {n}%" for n in (25, 50, 75, 100)]
    run("tensors", progress.UNKNOWN, 1)  # without a total it counts
    assert "tensors: 1," in capsys.readouterr().err
