"""Known draft models by the target's family, to download if no installed model fits.

The table known_pairs.json cites a source for each pair. It lists only the draft heads that are used most."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from paceline.models.headers.facts import ModelFacts, family_of

FILE = Path(__file__).with_name("known_pairs.json")
DRAFT_MODEL = "draft model"
SMALLER = 3  # required ratio of target to draft parameters


@dataclass(frozen=True)
class KnownPair:
    """A draft model for a family of targets.
    targets, excluded: patterns of the target's family or name, in lower case.
    least: the target's minimum parameters. draft: a reference for `paceline pull`. largest: draft parameters.
    caveat, source: may be empty. pair: "reported" if somebody ran it, else "recalled". kind: "transplant" for
    a draft model that needs the target's vocabulary."""

    targets: Sequence[str]
    excluded: Sequence[str]
    least: int
    draft: str
    largest: int
    why: str
    caveat: str
    source: str
    pair: str = "recalled"
    kind: str = DRAFT_MODEL

    def fits(self, target: ModelFacts) -> bool:
        name = re.sub(r"[\s_]+", "-", target.name.strip().lower())  # as in meta-llama-3.1-8b-instruct
        names = [name for name in (target.family.lower(), name) if name]
        if target.parameters is not None and target.parameters < max(self.least, SMALLER * self.largest):
            return False
        return _any(names, self.targets) and not _any(names, self.excluded)


@cache
def known_pairs() -> tuple[KnownPair, ...]:
    """Return the table, in order of preference."""
    from pydantic import TypeAdapter

    return TypeAdapter(tuple[KnownPair, ...]).validate_python(json.loads(FILE.read_bytes())["pairs"])


def known_drafts(target: ModelFacts) -> list[KnownPair]:
    """Return the known drafts for a target of this family and size: what somebody ran comes first."""
    found = [pair for pair in known_pairs() if pair.fits(target)]
    return sorted(found, key=lambda pair: pair.pair != "reported")


def facts_of_name(reference: str) -> ModelFacts:
    """Return the family and the size in a model's name (hf.co/Qwen/Qwen3-30B-A3B, ollama:llama3.1:8b)."""
    name = reference.removeprefix("ollama:").rpartition("/")[2].replace(":", "-")
    size = re.search(r"(?i)(?<![\da-z.])(\d+(?:\.\d+)?)b(?![a-z])", name)
    parameters = round(float(size[1]) * 1e9) if size else None
    return ModelFacts((Path(reference),), "gguf", name, "", family=family_of([name]), parameters=parameters)


def _any(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
