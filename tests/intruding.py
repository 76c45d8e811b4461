"""A database that another process changes between two statements, wherever a test likes."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest


def intrude(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> list[int]:
    """Let `act` happen just before statement `at` of those that run outside of a writer's transaction, where
    no lock would make the other one wait. Returns a list that grows by each of them."""
    passed: list[int] = []
    connect = sqlite3.connect

    class Intruded(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if not self.in_transaction:
                passed.append(len(passed))
                if passed[-1] == at:
                    with monkeypatch.context() as patch:
                        patch.setattr(sqlite3, "connect", connect)
                        act()
            return super().execute(statement, *values)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(connect, factory=Intruded))
    return passed
