"""The bench history: a file of JSON lines that benches append to, so that an interrupted one can continue.

A run begins with a line of its plan and ends with one of its results. Without that it failed, was killed, or
is being measured."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import paceline
from paceline.bench.replay.recording import append_line
from paceline.bench.summary import BenchResult
from paceline.bench.system import ItemMeasurements
from paceline.speculative.errors import HistoryError, UsageError
from paceline.system.home import home

Status = Literal["running", "done", "interrupted"]
FORMAT = 1  # raised when a field changes its meaning or is removed


def default_path() -> Path:
    return home() / "bench.jsonl"


class History:
    """The stored runs, numbered in the order they began. Several processes may append to one file. Raises
    HistoryError if the file cannot be used; it is never deleted or repaired."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines()

    def begin(self, plan: Mapping[str, Any], provenance: Mapping[str, Any]) -> int:
        """Add a run and return its number."""
        key, started = uuid.uuid4().hex, datetime.now(UTC).isoformat(timespec="seconds")
        record = {"format": FORMAT, "started": started, "paceline": paceline.__version__}
        self._append(key, record | {"plan": dict(plan), "provenance": dict(provenance)})
        return int(next(run["id"] for run in self.runs() if run["run"] == key))

    def add(self, run: int, group: ItemMeasurements) -> None:
        self._append(self.run(run)["run"], asdict(group))

    def finish(self, run: int, status: Status, results: Sequence[BenchResult]) -> None:
        """Add the end of a run; the last one counts."""
        end = {"status": status, "results": [asdict(result) for result in results]}
        self._append(self.run(run)["run"], end)

    def groups(self, run: int) -> list[ItemMeasurements]:
        """Return the measurements of a run, for each item and round the first ones."""
        key, out = self.run(run)["run"], dict[tuple[int, str], ItemMeasurements]()
        for line in self._lines():
            if line.pop("run") == key and "measurements" in line:
                group = ItemMeasurements(**line)
                out.setdefault((group.round, group.item), group)
        return list(out.values())

    def runs(self) -> list[dict[str, Any]]:
        """Return all runs, newest first: the lines of their beginning and end, and `id`, the number."""
        out: dict[str, dict[str, Any]] = {}
        for line in self._lines():
            if "plan" in line:
                out[line["run"]] = {"id": len(out) + 1, "status": "running", "results": []} | line
            elif "results" in line and line["run"] in out:
                out[line["run"]] |= line
        return list(out.values())[::-1]

    def run(self, which: int | str) -> dict[str, Any]:
        runs = self.runs()
        stored = next((run for run in runs if str(which) in ("last", str(run["id"]))), None)
        if stored is None:
            raise UsageError(f"the bench history {self.path} has no run {which}: it has {len(runs)}")
        return stored

    def _append(self, key: str, data: Mapping[str, Any]) -> None:
        with self._using("written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps({"run": key, **data}).encode() + b"\n")

    def _lines(self) -> list[dict[str, Any]]:
        """Return all lines except those that a killed process left cut short."""
        with self._using("read"):
            data = self.path.read_bytes() if self.path.exists() else b""
        out = []
        for line in data.splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue
            if isinstance(one, dict) and isinstance(one.get("run"), str):
                out.append(one)
        is_newer = any(one.get("format", FORMAT) > FORMAT for one in out)
        if is_newer or (data.strip() and not out):
            newer = "is of a newer Paceline: update Paceline"
            raise self._unusable(newer if is_newer else "is damaged, or no bench history")
        return out

    @contextmanager
    def _using(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._unusable(f"cannot be {what} ({error.strerror})") from error

    def _unusable(self, why: str) -> HistoryError:
        advice = "name another file with --history FILE, or give --no-history"
        return HistoryError(f"the bench history {self.path} {why}; {advice}")
