"""The SQLite file that past outputs are kept in: made, opened, removed, and its errors in words.

A rollback journal, not a write-ahead log: that one needs shared memory, which network file systems have not,
and leaves two more files beside the first. A connection lasts for one call only: nothing is held while an
answer is decoded, any thread may call, and a file that was removed meanwhile is made anew.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from paceline.core.errors import RememberedError
from paceline.machine.database import (
    DAMAGED,
    LOCKED,
    OFTEN,
    Patience,
    execute,
    kind_of,
    make_private,
    marks,
    transaction,
)

VERSION = 1
APPLICATION = int.from_bytes(b"PACR")  # marks the file as ours: another program's is left alone
ADVICE = "remove it with `paceline corpus forget`, or leave out remember (--remember)"

# AUTOINCREMENT: an id that was dropped is never given again, so that ids are in the order of time.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS store"
    " (project BLOB NOT NULL, fingerprint TEXT NOT NULL, tokens INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS outputs (id INTEGER PRIMARY KEY AUTOINCREMENT, added INTEGER NOT NULL,"
    " n INTEGER NOT NULL, tokens BLOB NOT NULL)",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


class RemovedError(RememberedError):
    """It was removed after it had been opened."""


@contextmanager
def connected(
    path: Path, wait: float, new: tuple[bytes, str] | None = None, *, writing: bool = False
) -> Iterator[sqlite3.Connection]:
    """A connection to the file, within one transaction: what is read there is of one moment, whatever others
    make, add or forget meanwhile. new: the project and the fingerprint to make it with where there is none.
    Raises RememberedError; RemovedError for one that is not there, without `new`."""
    with explained(path, wait):
        if new is not None:
            make_private(path)
        with closing(_open(path)) as connection:
            patience = Patience(path, wait)
            while True:
                with transaction(connection, "IMMEDIATE" if writing else "DEFERRED", patience):
                    if _known(connection, path):
                        yield connection
                        return
                if new is None:
                    raise RemovedError(f"nothing is kept in {path} any more: try again")
                _make(connection, new, patience)  # and, before it is read, it may be forgotten again


def remove(path: Path, wait: float) -> None:
    """All that is kept there; of a good file an empty one is left. Whatever else it is, it is removed.
    Raises RememberedError."""
    patience = Patience(path, wait)
    with explained(path, wait):
        try:
            with closing(_open(path)) as connection:
                with transaction(connection, patience=patience):
                    known = _known(connection, path)
                    if known:
                        connection.execute("DELETE FROM outputs")
                        connection.execute("DELETE FROM store")
                if known:
                    execute(connection, "VACUUM", patience)
            # Not unlinked, nor where another process has just emptied it: who has it open would take the
            # journal of the next file of its name for its own, and roll that back ("How To Corrupt An SQLite
            # Database File", section 2.4).
            return
        except sqlite3.DatabaseError as error:
            if kind_of(error) in LOCKED:
                raise
        except RememberedError:
            pass  # not one of ours: nobody uses it
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)


def _open(path: Path) -> sqlite3.Connection:
    # rw: read only where it cannot be written, and never made. Without isolation_level a statement on its
    # own is a transaction.
    name = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(name, uri=True, timeout=OFTEN, isolation_level=None)
    # What is dropped is people's text: it is overwritten.
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _make(connection: sqlite3.Connection, new: tuple[bytes, str], patience: Patience) -> None:
    """Its tables and its row, where they are missing."""
    with transaction(connection, patience=patience):
        if not _known(connection, patience.path):  # asked again: another process may have made them meanwhile
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO store VALUES (?, ?, 0)", new)


def _known(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether it is made; RememberedError where the file is not for us to use."""
    application, version, tables = marks(connection)
    if tables and application != APPLICATION:
        raise RememberedError(
            f"{path} is another program's database: move it away, or leave out remember (--remember)"
        )
    if version > VERSION:
        raise RememberedError(
            f"{path} has version {version}, this Paceline knows {VERSION}: update Paceline, or {ADVICE}"
        )
    return bool(tables and connection.execute("SELECT count(*) FROM store").fetchone()[0])


@contextmanager
def explained(path: Path, wait: float) -> Iterator[None]:
    """Errors of SQLite and of the system in words that say what to do."""
    try:
        yield
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error
    except sqlite3.DatabaseError as error:
        if not kind_of(error):  # Python was misused: a bug
            raise
        moved = error.sqlite_errorcode == sqlite3.SQLITE_READONLY_DBMOVED
        if moved or (kind_of(error) == sqlite3.SQLITE_CANTOPEN and not path.exists()):
            raise RemovedError(f"{path} was removed while it was in use: try again") from error
        if kind_of(error) in LOCKED:
            raise RememberedError(
                f"{path} has been locked by another process for {wait:g} s: try again when that is done"
            ) from error
        if kind_of(error) in DAMAGED:
            raise damaged(path, str(error)) from error
        raise _unusable(path, str(error)) from error


def damaged(path: Path, why: str) -> RememberedError:
    return RememberedError(f"{path}, where past outputs are kept, is damaged ({why}): {ADVICE}")


def _unusable(path: Path, why: str) -> RememberedError:
    return RememberedError(
        f"{path}, where past outputs are kept, cannot be opened or written ({why}): name another folder with "
        "PACELINE_HOME, or leave out remember (--remember)"
    )
