"""Whatever ends the process puts right first what it has changed outside of itself."""

from __future__ import annotations

import os

import pytest

from paceline.core.leaving import leave, undone


def test_what_is_still_to_be_undone_is_undone_last_things_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []

    def ended(code: int) -> None:
        said.append(code)
        raise SystemExit

    def gone() -> None:
        raise OSError

    monkeypatch.setattr(os, "_exit", ended)
    with undone(lambda: said.append("over")):
        pass
    with (
        pytest.raises(SystemExit),
        undone(lambda: said.append("first")),
        undone(gone),
        undone(lambda: said.append("second")),
    ):
        leave(7)
    assert said == ["second", "first", 7]
