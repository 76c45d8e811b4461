"""Transactions end whole or not at all, and a file tells whose it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from paceline.storage.database import DAMAGED, LOCKED, kind_of, marks, transaction


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "a.sqlite", timeout=0, isolation_level=None)) as connection:
        yield connection


def test_of_one_that_fails_nothing_is_left(connection: sqlite3.Connection) -> None:
    def interrupted() -> None:
        with transaction(connection):
            connection.execute("CREATE TABLE a (b)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert marks(connection) == (0, 0, 0)
    assert not connection.in_transaction


def test_another_writer_is_told_at_the_beginning(connection: sqlite3.Connection, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.sqlite", timeout=0, isolation_level=None)) as other:
        with transaction(connection):
            with pytest.raises(sqlite3.OperationalError) as caught, transaction(other):
                pytest.fail("two writers at once")
            assert kind_of(caught.value) in LOCKED
            with transaction(other, "DEFERRED"):
                assert marks(other).tables == 0
        with transaction(other):
            pass


def test_a_file_of_something_else_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"no database" * 1000)
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.DatabaseError) as caught:
        marks(connection)
    assert kind_of(caught.value) in DAMAGED
