"""A bench's run in the history: what an earlier try at it has finished, and what comes now, as it comes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from paceline.core.errors import HistoryError, UsageError
from paceline.lab.bench.history import History
from paceline.lab.bench.measurement import Group, Measurement
from paceline.lab.bench.outcome import Record
from paceline.lab.bench.summary import Row


class Kept:
    """history: None where nothing is kept; all of this is then without effect. record: what is kept of, whose
    `run` is one to go on with until `begin` gives it a new one."""

    def __init__(self, history: History | None, record: Record) -> None:
        self._history, self._record = history, record

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        """A history that can no longer be written ends no bench: what is measured can still be shown."""
        try:
            yield
        except (HistoryError, UsageError) as error:  # UsageError: the run was removed meanwhile
            self._history = None
            self._record.lost = str(error)

    def begin(self, varying: Collection[str]) -> None:
        """A run of its own, or the one to go on with. varying: names of the provenance that may differ from
        the earlier try's. Raises UsageError where others do: what was measured could not stand beside what
        would be."""
        record, history = self._record, self._history
        if history is None:
            return
        if record.run is None:
            record.run = history.begin(record.plan.as_dict(), record.provenance)
            return
        earlier = history.run(record.run).provenance
        now = json.loads(json.dumps(record.provenance))
        if unlike := [name for name in now if name not in varying and now[name] != earlier.get(name)]:
            raise UsageError(
                f"run {record.run} cannot be gone on with, its {', '.join(unlike)} differed: measure anew"
            )
        history.resume(record.run)

    def restore_provenance(self) -> None:
        """The earlier try's, where all that there is was its."""
        if not self._record.provenance and self._history is not None and self._record.run is not None:
            self._record.provenance = dict(self._history.run(self._record.run).provenance)

    def rows(self, at: int, order: Sequence[str]) -> list[Row]:
        """Of a point of the sweep that is finished, the systems as they stood, in this order, others after
        them; none where it is not."""
        if self._history is None or self._record.run is None:
            return []
        rows = [
            Row(**row) for (where, _), row in self._history.gates(self._record.run).items() if where == at
        ]
        return sorted(rows, key=lambda row: order.index(row.system) if row.system in order else len(order))

    def groups(self, at: int) -> list[Group]:
        """What is measured of a point."""
        if self._history is None or self._record.run is None:
            return []
        stored = self._history.groups(self._record.run)
        return [
            Group(round_, item, told[0]["category"], {one["system"]: Measurement.read(one) for one in told})
            for (where, round_, item), told in stored.items()
            if where == at
        ]

    def add(self, at: int, group: Group) -> None:
        if self._history is not None and self._record.run is not None:
            told = [{"category": group.category, **asdict(m)} for m in group.measurements.values()]
            with self._keeping():
                self._history.add_group(self._record.run, at, group.round, group.item, told)

    def finish_point(self, at: int, rows: Sequence[Row]) -> None:
        if self._history is not None and self._record.run is not None:
            with self._keeping():
                self._history.add_gates(self._record.run, at, {row.system: asdict(row) for row in rows})

    def finish(self) -> None:
        record = self._record
        if self._history is not None and record.run is not None:
            with self._keeping():
                self._history.finish(record.run, record.status, record.results)
