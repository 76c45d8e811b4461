"""Models that need no download of their own: a tiny target and draft that ship with Paceline, to try and test
everything with, and SmolLM2, a small real model that a Python package carries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.models.zoo.table import MODELS, ZOO_ENTRIES, ZooEntry
from paceline.speculative.errors import UsageError


@dataclass(frozen=True)
class ZooModel:
    """A model of the table as it is on this machine. path: None where it is not here, and `missing` says what
    to do. size: of its file, in bytes; 0 where it is not here."""

    name: str
    path: Path | None
    size: int
    parameters: int
    description: str
    missing: str = ""


def models_dir() -> Path:
    """The folder of the shipped GGUF files."""
    return MODELS


def target_path() -> Path:
    """The shipped target (Q8_0)."""
    return MODELS / "paceline-target.gguf"


def draft_path() -> Path:
    """The shipped draft (F16), which has the target's vocabulary."""
    return MODELS / "paceline-draft.gguf"


def row(name: str) -> ZooEntry:
    """Raises UsageError for a name that the table has not."""
    for one in ZOO_ENTRIES:
        if one.name == name:
            return one
    raise UsageError(f"the zoo has no {name!r}: choose from {', '.join(one.name for one in ZOO_ENTRIES)}")


def path(name: str) -> Path:
    """Where its file is; the file is not looked into. Raises UsageError, with the command that gets it, where
    it is not on this machine."""
    one = row(name)
    found = _wheel_file(one) if one.wheel else MODELS / one.file
    if found is None or not found.is_file():
        remedy = "install Paceline again"
        if one.wheel is not None:
            remedy = one.wheel.install if found is None else one.wheel.reinstall
        raise UsageError(f"zoo:{name} is not on this machine: {remedy}")
    return found


def models() -> list[ZooModel]:
    """All of the table, as `paceline zoo list` shows them."""
    found = []
    for one in ZOO_ENTRIES:
        about = (one.parameters, one.description)
        try:
            file = path(one.name)
        except UsageError as error:
            found.append(ZooModel(one.name, None, 0, *about, str(error).partition(": ")[2]))
        else:
            found.append(ZooModel(one.name, file, file.stat().st_size, *about))
    return found


def installed_real_models() -> dict[str, Path]:
    """Those on this machine that have something to say, and their drafts, by what a user types for them."""
    here = {one.name: one.path for one in models() if one.path is not None}
    return {f"zoo:{one.name}": here[one.name] for one in ZOO_ENTRIES if one.name in here and not one.toy}


def _wheel_file(one: ZooEntry) -> Path | None:
    """Return the file as the package's own list has it, without importing it; None without the package."""
    from importlib.metadata import PackageNotFoundError, distribution

    assert one.wheel is not None
    try:
        return Path(str(distribution(one.wheel.package).locate_file(one.file)))
    except PackageNotFoundError:
        return None
