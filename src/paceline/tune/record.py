"""The record of a tune: a file of JSON lines that all else reads.

The first line has the plan and the provenance. A line of a stage has the measurements of one item, or at the
stage's end its results. The last line has the conclusion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import whole_objects
from paceline.bench.run_file import append, begin_file
from paceline.bench.system import ItemMeasurements
from paceline.speculative.errors import UsageError
from paceline.system.home import home

FORMAT, KIND = 1, "tune"  # the format is raised when a field changes its meaning or is removed


@dataclass
class Stage:
    """Candidates that answered the same items in turns.
    groups: the measurements of each item. results: as of a bench; None before the end. note: what was
    concluded. candidates: of a search without the model."""

    groups: list[ItemMeasurements] = field(default_factory=list)
    results: list[dict[str, Any]] | None = None
    note: str = ""
    candidates: list[Any] = field(default_factory=list)


@dataclass
class TuneRecord:
    """The plan, the stages by name and the conclusion of a tune. path: of the file, None for none."""

    plan: dict[str, Any]
    path: Path | None = None
    folder: str = ""
    provenance: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, Stage] = field(default_factory=dict)
    conclusion: dict[str, Any] = field(default_factory=dict)

    def begin(self, provenance: dict[str, Any]) -> None:
        """Write the first line. Raises UsageError for measurements of another model or machine."""
        provenance = json.loads(json.dumps(provenance))
        if self.provenance:
            if unlike := [name for name in provenance if provenance[name] != self.provenance.get(name)]:
                raise UsageError(f"{self.path}: cannot go on, its {', '.join(unlike)} differed: tune anew")
            return
        self.provenance, self.folder = provenance, str(Path.cwd())
        head = {"plan": self.plan, "folder": self.folder, "provenance": provenance}
        if self.path is not None:
            begin_file(self.path, {"format": FORMAT, "kind": KIND, **head})

    def append(self, line: Mapping[str, Any]) -> None:
        """Write a line. Raises OSError."""
        if self.path is not None:
            append(self.path, line)

    def add(self, stage: str, group: ItemMeasurements) -> None:
        self.stages[stage].groups.append(group)
        self.append({"stage": stage, "group": asdict(group)})

    def end(self, stage: str, **found: Any) -> None:
        """Write the end of a stage. found: fields of Stage."""
        for name, value in found.items():
            setattr(self.stages[stage], name, value)
        self.append({"stage": stage, **found})

    def conclude(self, **conclusion: Any) -> None:
        self.conclusion = conclusion
        self.append({"conclusion": conclusion})

    def as_dict(self) -> dict[str, Any]:
        stages = [
            {"stage": name, "results": stage.results or [], "note": stage.note}
            for name, stage in self.stages.items()
        ]
        file = None if self.path is None else str(self.path)
        head = {"kind": KIND, "file": file, "plan": self.plan, "provenance": self.provenance}
        return head | {"stages": stages, "conclusion": self.conclusion}


def new_path() -> Path:
    return home() / "tune" / f"{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.jsonl"


def read(path: Path) -> TuneRecord:
    """Read a record. Raises UsageError for a file that is none."""
    try:
        head, *rest = whole_objects(path)
        if (head.pop("format"), head.pop("kind")) != (FORMAT, KIND):
            raise ValueError
        record = TuneRecord(path=path, **head)
        for data in rest:
            if "conclusion" in data:
                record.conclusion = data["conclusion"]
                continue
            stage = record.stages.setdefault(data.pop("stage"), Stage())
            if "group" in data:
                stage.groups.append(ItemMeasurements(**data["group"]))
            else:
                for name, value in data.items():
                    setattr(stage, name, value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: is no record of `paceline tune`, or one of another version") from error
    return record
