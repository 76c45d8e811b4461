"""What the SQLite files of this package have in common: who may read them, transactions, whose a file is,
kinds of errors."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from paceline.system.home import make_private_folder

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class DatabaseHeader(NamedTuple):
    """application: who made the file, 0 where nobody said. tables: how many it has, with their indexes."""

    application: int
    version: int
    tables: int


def make_private(path: Path) -> None:
    """An empty file where there is none, and its folder, for the user's eyes only. SQLite gives the files
    that it keeps beside it the permissions of this one. Raises OSError."""
    make_private_folder(path.parent)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def restrict_permissions(path: Path) -> None:
    """The same for one that is there, and those beside it."""
    for one in (path, *(path.with_name(f"{path.name}-{kind}") for kind in ("wal", "shm", "journal"))):
        with suppress(FileNotFoundError, PermissionError):  # PermissionError: it is somebody else's
            if one.stat().st_mode & 0o077:
                one.chmod(0o600)


def marks(connection: sqlite3.Connection) -> DatabaseHeader:
    # In one statement: between two of them another process may make the tables.
    return DatabaseHeader(
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
