"""A run of a bench as a file of JSON lines, so that an interrupted one can continue.

The first line has the plan and the provenance, every further line the measurements of one item, and the last
line the results. Without results the run failed, was killed, or is being measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from paceline.bench.jsonl import LineError, object_of, raw_lines
from paceline.bench.replay.recording import append_line
from paceline.bench.system import ItemMeasurements
from paceline.speculative.errors import UsageError
from paceline.system.home import home, make_private_folder

Status = Literal["running", "done", "interrupted"]
FORMAT = 2  # raised when a field changes its meaning or is removed


def folder() -> Path:
    """Return the folder of runs that were given no file."""
    return home() / "bench"


def new_path() -> Path:
    return folder() / f"{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.jsonl"


@dataclass(frozen=True)
class StoredRun:
    """A run in a file.
    started: the local time. folder: relative paths of the plan begin there. groups: the measurements of each
    item and round."""

    path: Path
    started: str
    folder: str
    plan: dict[str, Any]
    provenance: dict[str, Any]
    status: Status
    results: list[dict[str, Any]]
    groups: list[ItemMeasurements]


def require_new(path: Path) -> None:
    """Raise UsageError for a file with contents, or a folder."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder: name a file in it (-o)")
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path}: is not empty: continue it (--continue), or name another file (-o)")


def append(path: Path, data: Mapping[str, Any]) -> None:
    """Write a line, readable by the user only. Raises OSError."""
    append_line(path, json.dumps(data).encode() + b"\n")


def begin(path: Path, plan: Mapping[str, Any], provenance: Mapping[str, Any]) -> None:
    """Write the first line. Raises UsageError if the file cannot be written."""
    started = datetime.now().isoformat(timespec="seconds")
    line = {"format": FORMAT, "started": started, "folder": str(Path.cwd())}
    try:
        make_private_folder(path.parent)
        append(path, line | {"plan": plan, "provenance": provenance})
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}); name another file (-o)") from error


def read(path: Path) -> StoredRun:
    """Read a run. Raises UsageError for a file that is none."""
    lines: list[dict[str, Any]] = []
    for line in raw_lines(path):
        with suppress(LineError):  # a killed process left it cut short
            lines.append(object_of(line))
    first: dict[str, Any] = lines[0] if lines else {}
    end: dict[str, Any] = {"status": "running", "results": []}
    groups = dict[tuple[int, str], ItemMeasurements]()
    try:
        for data in lines[1:]:
            if "results" in data:
                end = data
            else:
                group = ItemMeasurements(**data)
                groups.setdefault((group.round, group.item), group)
        if first.pop("format") == FORMAT:
            return StoredRun(path, **first, **end, groups=list(groups.values()))
    except (KeyError, TypeError):
        pass
    raise UsageError(f"{path}: is no run of `paceline bench`, or one of another version")
