"""Which other programs join a bench, and as what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.lab.bench.entry import Entry
from paceline.lab.bench.method import Method


@dataclass(frozen=True)
class Peers:
    given: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Peers:
        return cls(())

    def entries(
        self,
        plain: Entry,
        methods: Sequence[Method],
        target: Path,
        draft: Path | None,
        engine: Mapping[str, Any],
    ) -> list[Entry]:
        return []
