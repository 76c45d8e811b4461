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

from paceline.models.headers.facts import ModelFacts

FILE = Path(__file__).with_name("known_pairs.json")
SMALLER = 3  # times that a draft has to be smaller than its target


@dataclass(frozen=True)
class KnownPair:
    """A draft model for a family of targets.

    targets: patterns of the target's family or name, in small letters; not those of `excluded`.
    least: parameters of the target. draft: a reference for `paceline pull`; largest: its parameters.
    caveat: may be empty. source: an address; empty where the pair is only recalled.
    """

    targets: tuple[str, ...]
    excluded: tuple[str, ...]
    least: int
    draft: str
    largest: int
    why: str
    caveat: str
    source: str

    def fits(self, target: ModelFacts) -> bool:
        names = [name for name in (target.family.lower(), _named(target.name)) if name]
        if target.parameters is not None and target.parameters < max(self.least, SMALLER * self.largest):
            return False
        return _any(names, self.targets) and not _any(names, self.excluded)


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """Return the table, in order of preference."""
    names = [field.name for field in fields(KnownPair)]
    entries = (
        entry | {"targets": tuple(entry["targets"]), "excluded": tuple(entry["except"])}
        for entry in json.loads(FILE.read_text("utf-8"))["pairs"]
    )
    return tuple(KnownPair(**{name: entry[name] for name in names}) for entry in entries)


def known_drafts(target: ModelFacts) -> list[KnownPair]:
    """Return what a target of this family and size is known to take; the best first."""
    return [pair for pair in known_pairs() if pair.fits(target)]


def _any(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _named(name: str) -> str:
    """Meta Llama 3.1 8B Instruct, as patterns are written."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())
