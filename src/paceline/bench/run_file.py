"""A run of a bench: a file of JSON lines that the runner appends to, and that all else reads.

The first line has the plan and the provenance, every further line the measurements of one item, and the last
line the results. Without results the run failed, was killed, or is being measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from paceline.bench.jsonl import whole_objects
from paceline.bench.replay.recording import append_line
from paceline.bench.system import ItemMeasurements
from paceline.speculative.errors import UsageError
from paceline.system.home import home, make_private_folder

Status = Literal["running", "done", "interrupted"]
FORMAT = 2  # raised when a field changes its meaning or is removed
REPORTED = ("status", "plan", "results", "sample", "skipped", "provenance")
HEAD = ("started", "folder", "plan", "provenance")


def folder() -> Path:
    """Return the folder of runs that were given no file."""
    return home() / "bench"


def new_path() -> Path:
    return folder() / f"{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.jsonl"


@dataclass
class Run:
    """The plan, the measurements and the results of a bench.
    started: the local time. folder: relative paths of the plan begin there. groups: the measurements of each
    item and round. path: of the file, if there is one. skipped: reasons of items that were not measured.
    sample: a system and its last answer, in pieces with their drafters.
    reading: tokens and seconds of prefills. lost: error of a failed write to the file."""

    plan: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)
    started: str = ""
    folder: str = ""
    status: Status = "running"
    results: list[dict[str, Any]] = field(default_factory=list)
    groups: list[ItemMeasurements] = field(default_factory=list)
    sample: dict[str, Any] = field(default_factory=dict)
    path: Path | None = None
    skipped: list[str] = field(default_factory=list)
    reading: list[tuple[int, float]] = field(default_factory=list)
    lost: str = ""

    def begin(self, path: Path) -> None:
        """Write the first line. Raises UsageError if the file cannot be written."""
        self.started, self.folder = datetime.now().isoformat(timespec="seconds"), str(Path.cwd())
        begin_file(path, {"format": FORMAT} | {name: getattr(self, name) for name in HEAD})
        self.path = path if path.is_file() else None  # and no device

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line. An error does not end the bench."""
        try:
            if self.path is not None and not self.lost:
                append(self.path, line)
        except OSError as error:
            self.lost = error.strerror or str(error)

    def as_dict(self) -> dict[str, Any]:
        n, seconds = (sum(column) for column in zip((0, 0.0), *self.reading, strict=True))
        return {
            "file": self.path and str(self.path),
            "prompt_speed": n / seconds if seconds else None,  # tokens/s of prefills
            "measurements": [
                {"round": group.round, "item": group.item, "category": group.category} | measurement
                for group in self.groups
                for measurement in group.measurements.values()
            ],
        } | {name: getattr(self, name) for name in REPORTED}


def require_new(path: Path) -> None:
    """Raise UsageError for a file with contents, or a folder."""
    if path.is_dir():
        raise UsageError(f"{path}: is a folder: name a file in it (-o)")
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{path}: is not empty: continue it (--continue), or name another file (-o)")


def begin_file(path: Path, head: Mapping[str, Any]) -> None:
    """Write the first line of a record. Raises UsageError if the file cannot be written."""
    try:
        make_private_folder(path.parent)
        append(path, head)
    except OSError as error:
        why = f"cannot be written ({error.strerror}); name another file (-o)"
        raise UsageError(f"{path}: {why}") from error


def append(path: Path, data: Mapping[str, Any]) -> None:
    """Write a line, readable by the user only. Raises OSError."""
    append_line(path, json.dumps(data).encode() + b"\n")


def read(path: Path) -> Run:
    """Read a run. Raises UsageError for a file that is none."""
    lines = whole_objects(path)
    groups = dict[tuple[int, str], ItemMeasurements]()
    try:
        first, end = lines[0], {}
        for data in lines[1:]:
            if "results" in data:
                end = data
            else:
                group = ItemMeasurements(**data)
                groups.setdefault((group.round, group.item), group)
        if first.pop("format") == FORMAT and first.keys() == {*HEAD}:
            return Run(path=path, groups=list(groups.values()), **first, **end)
    except (IndexError, KeyError, TypeError):
        pass
    raise UsageError(f"{path}: is no run of `paceline bench`, or one of another version")
