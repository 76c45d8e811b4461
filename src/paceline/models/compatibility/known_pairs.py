"""Draft models that are known to fit, by the target's family: what to download where nothing here fits.

Kept in known_pairs.json, each with its source, and with what of it was looked at and what is only recalled.
Heads (EAGLE-3, MTP, DFlash) are not in it: they are no models by themselves, and nothing here can use them
yet."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from paceline.models.headers.facts import ModelFacts

FILE = Path(__file__).with_name("known_pairs.json")
REPORTED, SEEN, RECALLED = "reported", "seen", "recalled"
SMALLER = 3  # times that a draft has to be smaller than its target


@dataclass(frozen=True)
class KnownPair:
    """targets: patterns of the target's family or name, in small letters; not those of excluded. least:
    parameters of the target. draft: a reference for `paceline pull`; largest: its parameters. caveat: may be
    empty. source: an address; empty where the pair is only recalled. pair: REPORTED or RECALLED; repository:
    SEEN or RECALLED."""

    targets: tuple[str, ...]
    excluded: tuple[str, ...]
    least: int
    draft: str
    largest: int
    why: str
    caveat: str
    source: str
    pair: str
    repository: str

    def fits(self, target: ModelFacts) -> bool:
        names = [name for name in (target.family.lower(), _named(target.name)) if name]
        if target.parameters is not None and target.parameters < max(self.least, SMALLER * self.largest):
            return False
        return _any(names, self.targets) and not _any(names, self.excluded)


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """In order of preference."""
    said = json.loads(FILE.read_text("utf-8"))["pairs"]
    return tuple(_read(entry) for entry in said)


def for_target(target: ModelFacts) -> list[KnownPair]:
    """What a target of this family, of this size, is known to take; the best first."""
    return [pair for pair in known_pairs() if pair.fits(target)]


def _read(entry: dict[str, Any]) -> KnownPair:
    values = entry | {"targets": tuple(entry["targets"]), "excluded": tuple(entry["except"])}
    return KnownPair(**{f.name: values[f.name] for f in fields(KnownPair)})


def _any(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _named(name: str) -> str:
    """Meta Llama 3.1 8B Instruct, as patterns are written."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())
