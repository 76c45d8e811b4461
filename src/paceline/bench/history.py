"""The bench history: a file of JSON lines that benches append to, so that an interrupted one can continue.

A run begins with a line of its plan and ends with one of its results. A run without an end was killed, or is
being measured."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
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

Status = Literal["running", "done", "interrupted", "failed"]
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
        key = uuid.uuid4().hex
        started = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"format": FORMAT, "started": started, "paceline": paceline.__version__}
        self._append(key, record | {"plan": dict(plan), "provenance": dict(provenance)})
        return self._keys().index(key) + 1

    def add(self, run: int, group: ItemMeasurements) -> None:
        self._append(self._keys()[run - 1], asdict(group))

    def finish(self, run: int, status: Status, results: Sequence[BenchResult]) -> None:
        """Add the end of a run; the last one counts."""
        end = {"status": status, "results": [asdict(result) for result in results]}
        self._append(self._keys()[run - 1], end)

    def groups(self, run: int) -> list[ItemMeasurements]:
        """Return the measurements of a run, for each item and round the first ones."""
        key, out = self._keys()[run - 1], dict[tuple[int, str], ItemMeasurements]()
        for line in self._lines():
            if line["run"] == key and "measurements" in line:
                group = ItemMeasurements(**{name: value for name, value in line.items() if name != "run"})
                out.setdefault((group.round, group.item), group)
        return list(out.values())

    def runs(self, limit: int | None = 20) -> list[dict[str, Any]]:
        """Return the last runs, newest first, each as `paceline bench list --json` prints it.

        started: UTC, ISO 8601. results: with the names of `BenchResult`; empty until the end."""
        ends = {line["run"]: line for line in self._lines() if "results" in line}
        out = []
        for number, line in enumerate((line for line in self._lines() if "plan" in line), 1):
            last = ends.get(line["run"], {"status": "running", "results": []})
            values = {name: line[name] for name in ("started", "paceline", "plan", "provenance")}
            ending = {"status": last["status"], "results": last["results"]}
            out.append({"id": number, "run": number, **values, **ending})
        return out[::-1][:limit]

    def run(self, which: int | Literal["last"]) -> dict[str, Any]:
        stored = next((run for run in self.runs(None) if which in ("last", run["id"])), None)
        if stored is None:
            raise UsageError(
                f"the bench history {self.path} has no run {which}: `paceline bench list` shows those it has"
            )
        return stored

    def _keys(self) -> list[str]:
        return [line["run"] for line in self._lines() if "plan" in line]

    def _append(self, key: str, data: Mapping[str, Any]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps({"run": key, **data}).encode() + b"\n")
        except OSError as error:
            raise self._unusable(error) from error

    def _lines(self) -> list[dict[str, Any]]:
        """Return all lines except those that a killed process left cut short."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error
        out = []
        for line in data.splitlines():
            try:
                one = json.loads(line)
            except ValueError:
                continue
            if isinstance(one, dict) and isinstance(one.get("run"), str):
                out.append(one)
        if data.strip() and not out:
            raise HistoryError(
                f"the bench history {self.path} is damaged, or no bench history: move it away, a new one is "
                "then made, or name another file with --history FILE"
            )
        if any(one.get("format", FORMAT) > FORMAT for one in out):
            raise HistoryError(
                f"the bench history {self.path} is of a newer Paceline: update Paceline, or name another "
                "file with --history FILE"
            )
        return out

    def _unusable(self, error: OSError) -> HistoryError:
        return HistoryError(
            f"the bench history {self.path} cannot be read or written ({error.strerror}): name another file "
            "with --history FILE, or give --no-history"
        )
