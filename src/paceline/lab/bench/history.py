"""Every bench's findings in one SQLite file: what was measured, group by group, so that a bench that was cut
short can be resumed, and what came of it, so that two of them can be compared."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import paceline
from paceline.core.errors import HistoryError, UsageError
from paceline.lab.bench.alive import Alive
from paceline.lab.bench.record import Result
from paceline.machine.database import DAMAGED, LOCKED, kind_of, make_private, marks, tighten, transaction
from paceline.machine.home import home

Status = Literal["running", "done", "interrupted", "failed"]
VERSION = 1
APPLICATION = int.from_bytes(b"PACE")  # marks the file as ours: another program's is left alone
WAIT = 10.0  # seconds that a lock of another process is waited for
PAUSE = 0.02  # seconds between two tries where SQLite itself does not wait

# AUTOINCREMENT: the number of a run that was deleted is never given to another one.
SCHEMA = (
    "CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, started TEXT NOT NULL, status TEXT NOT NULL,"
    " paceline TEXT NOT NULL, plan TEXT NOT NULL, provenance TEXT NOT NULL)",
    "CREATE TABLE groups (run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, point INTEGER NOT NULL,"
    " round INTEGER NOT NULL, item TEXT NOT NULL, measurements TEXT NOT NULL,"
    " PRIMARY KEY (run, point, round, item)) WITHOUT ROWID",
    "CREATE TABLE gates (run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, point INTEGER NOT NULL,"
    " system TEXT NOT NULL, verdict TEXT NOT NULL, PRIMARY KEY (run, point, system)) WITHOUT ROWID",
    "CREATE TABLE results (run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE, place INTEGER NOT NULL,"
    " result TEXT NOT NULL, PRIMARY KEY (run, place)) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


@dataclass(frozen=True)
class Run:
    """One bench. started: UTC, ISO 8601. paceline: the version that measured. plan: what resuming needs.
    results: with the names of `Result`; empty until the bench is finished."""

    id: int
    started: str
    status: Status
    paceline: str
    plan: Mapping[str, Any]
    provenance: Mapping[str, Any]
    results: tuple[Mapping[str, Any], ...]


def default_path() -> Path:
    return home() / "bench.sqlite"


class History:
    """Owns the connection; every change is on the disk when its method returns. Several processes may use one
    file at once. wait: seconds to wait for another's lock.

    Raises HistoryError where the file cannot be used; it is never deleted or repaired.
    """

    def __init__(self, path: Path, wait: float = WAIT) -> None:
        self.path, self._wait, self._alive = path, wait, Alive(path)
        with self._explained():
            make_private(path)
            # Autocommit: a statement on its own is a transaction.
            self._connection = sqlite3.connect(path, timeout=wait, isolation_level=None)
        try:
            with self._explained():
                self._prepare()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._alive.close()
        self._connection.close()

    def begin(self, plan: Mapping[str, Any], provenance: Mapping[str, Any]) -> int:
        """The number of a new run, which is "running" from now on: until it is finished, or this process
        ends."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        values = (started, "running", paceline.__version__, json.dumps(plan), json.dumps(provenance))
        statement = "INSERT INTO runs (started, status, paceline, plan, provenance) VALUES (?, ?, ?, ?, ?)"
        with self._explained(), transaction(self._connection):
            run = self._connection.execute(statement, values).lastrowid
            assert run is not None
            self._alive.begin(run)  # before anybody else sees it
        return run

    def resume(self, run: int) -> None:
        """Raises UsageError where another process measures it."""
        with self._explained(), transaction(self._connection):
            self._change(run, "UPDATE runs SET status = 'running' WHERE id = ?")
            if not self._alive.begin(run):
                raise self._busy(run)

    def add_group(
        self, run: int, point: int, round_: int, item: str, measurements: Sequence[Mapping[str, Any]]
    ) -> None:
        """measurements: one a system, of JSON's types. UsageError for a group that is there already."""
        try:
            self._execute(
                "INSERT INTO groups VALUES (?, ?, ?, ?, ?)",
                (run, point, round_, item, json.dumps(measurements)),
            )
        except sqlite3.IntegrityError as error:
            self.run(run)
            raise UsageError(
                f"run {run} already has item {item!r} of point {point}, round {round_}: another process is "
                "measuring the same run; end one of the two"
            ) from error

    def groups(self, run: int) -> dict[tuple[int, int, str], list[dict[str, Any]]]:
        """(point, round, item) -> its measurements."""
        rows = self._rows("SELECT point, round, item, measurements FROM groups WHERE run = ?", (run,))
        return {(point, round_, item): self._parsed(said) for point, round_, item, said in rows}

    def add_gates(self, run: int, point: int, verdicts: Mapping[str, Mapping[str, Any]]) -> None:
        """All of a point, by system, at once: a point that has some is complete. Later ones take the place of
        those before."""
        rows = [(run, point, system, json.dumps(verdict)) for system, verdict in verdicts.items()]
        try:
            with self._explained(), transaction(self._connection):
                self._connection.executemany("INSERT OR REPLACE INTO gates VALUES (?, ?, ?, ?)", rows)
        except sqlite3.IntegrityError:
            self.run(run)  # says that it is gone
            raise

    def gates(self, run: int) -> dict[tuple[int, str], dict[str, Any]]:
        """(point, system) -> its verdict."""
        rows = self._rows("SELECT point, system, verdict FROM gates WHERE run = ?", (run,))
        return {(point, system): self._parsed(verdict) for point, system, verdict in rows}

    def finish(self, run: int, status: Status, results: Sequence[Result]) -> None:
        """results take the place of those of an earlier end."""
        rows = [(run, place, json.dumps(asdict(result))) for place, result in enumerate(results)]
        with self._explained(), transaction(self._connection):
            if not self._connection.execute(
                "UPDATE runs SET status = ? WHERE id = ?", (status, run)
            ).rowcount:
                raise self._unknown(run)
            self._connection.execute("DELETE FROM results WHERE run = ?", (run,))
            self._connection.executemany("INSERT INTO results VALUES (?, ?, ?)", rows)
        self._alive.end(run)

    def runs(self, limit: int = 20) -> list[Run]:
        """The last ones, newest first."""
        rows = self._rows("SELECT * FROM runs ORDER BY id DESC LIMIT ?", (limit,))
        return [self._read(row) for row in rows]

    def run(self, which: int | Literal["last"]) -> Run:
        if which == "last":
            runs = self.runs(1)
            if not runs:
                raise UsageError(f"the bench history {self.path} is empty: run `paceline bench` first")
            return runs[0]
        rows = self._rows("SELECT * FROM runs WHERE id = ?", (which,))
        if not rows:
            raise self._unknown(which)
        return self._read(rows[0])

    def delete(self, run: int) -> None:
        self._change(run, "DELETE FROM runs WHERE id = ?")
        with self._explained():
            self._alive.forget(run)

    def check_idle(self, run: int) -> None:
        """Raises UsageError where another process measures it."""
        with self._explained():
            if self._alive.is_measured(run):
                raise self._busy(run)

    def _read(self, row: tuple[Any, ...]) -> Run:
        id_, started, status, version, plan, provenance = row
        said = self._rows("SELECT result FROM results WHERE run = ? ORDER BY place", (id_,))
        results = tuple(self._parsed(text) for (text,) in said)
        if status == "running":
            with self._explained():
                if self._alive.is_measured(id_) is False:
                    status = "interrupted"  # its process was killed
        return Run(id_, started, status, version, self._parsed(plan), self._parsed(provenance), results)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise self._damaged(error) from error

    def _change(self, run: int, statement: str) -> None:
        if not self._execute(statement, (run,)).rowcount:
            raise self._unknown(run)

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._explained():
            return self._connection.execute(statement, values).fetchall()

    def _execute(self, statement: str, values: Sequence[Any]) -> sqlite3.Cursor:
        with self._explained():
            return self._connection.execute(statement, values)

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA foreign_keys = ON")
        # A power cut may take nothing that was written.
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._known():
            tighten(self.path)
        self._write_ahead()
        with transaction(self._connection):
            # Asked again: another process may have made the tables in the meantime.
            if not self._known():
                for statement in SCHEMA:
                    self._connection.execute(statement)

    def _known(self) -> bool:
        """Whether the tables are there; HistoryError where the file is not for us to use."""
        application, version, tables = marks(self._connection)
        if tables and application != APPLICATION:
            raise HistoryError(
                f"{self.path} is the database of another program, not a bench history: "
                "name another file with --history FILE"
            )
        if version > VERSION:
            raise HistoryError(
                f"the bench history {self.path} has version {version}, this Paceline knows {VERSION}: update "
                "Paceline, or name another file with --history FILE"
            )
        return bool(tables)

    def _write_ahead(self) -> None:
        """Readers then do not wait for a writer. SQLite does not wait for the lock this takes, so we do."""
        end = time.monotonic() + self._wait
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if kind_of(error) != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                    raise
            time.sleep(PAUSE)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """SQLite's errors in words that say what to do; IntegrityError is for the caller to explain."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from error
        except sqlite3.DatabaseError as error:
            if not kind_of(error):  # Python was misused: a bug
                raise
            if kind_of(error) in LOCKED:
                raise HistoryError(
                    f"the bench history {self.path} has been locked by another process for {self._wait:g} s: "
                    "wait until it is done, name another file with --history FILE, or give --no-history"
                ) from error
            if kind_of(error) in DAMAGED:
                raise self._damaged(error) from error
            raise self._unusable(str(error)) from error

    def _damaged(self, error: Exception) -> HistoryError:
        return HistoryError(
            f"the bench history {self.path} is damaged or no SQLite database ({error}): move it away, "
            "a new one is then made, or name another file with --history FILE"
        )

    def _unusable(self, why: str) -> HistoryError:
        return HistoryError(
            f"the bench history {self.path} cannot be opened or written ({why}): name another file with "
            "--history FILE, or give --no-history"
        )

    def _busy(self, run: int) -> UsageError:
        return UsageError(f"run {run} is being measured by another process: wait until that is done")

    def _unknown(self, run: int) -> UsageError:
        return UsageError(
            f"the bench history {self.path} has no run {run}: `paceline bench list` shows those it has"
        )
