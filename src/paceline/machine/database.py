"""What the SQLite files of this package have in common: transactions, whose a file is, kinds of errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Marks(NamedTuple):
    """application: who made the file, 0 where nobody said. tables: how many it has, with their indexes."""

    application: int
    version: int
    tables: int


def marks(connection: sqlite3.Connection) -> Marks:
    # In one statement: between two of them another process may make the tables.
    return Marks(
        *connection.execute(
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master)"
            " FROM pragma_application_id, pragma_user_version"
        ).fetchone()
    )


@contextmanager
def transaction(
    connection: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE"
) -> Iterator[None]:
    """IMMEDIATE waits for the lock at once, where nothing has been read that could be out of date."""
    try:
        connection.execute(f"BEGIN {kind}")
        yield
        connection.execute("COMMIT")
    finally:
        # Not where SQLite has rolled back on its own, as it does when the disk is full.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def kind_of(error: sqlite3.Error) -> int:
    """SQLite's code without its variety, which is in the higher bytes; 0 where Python was misused."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
