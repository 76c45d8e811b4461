"""Models without a download: a tiny target and draft that ship with Paceline, and SmolLM2 from a package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.models.zoo.table import MODELS, ZOO_ENTRIES, ZooEntry
from paceline.speculative.errors import UsageError


@dataclass(frozen=True)
class ZooModel:
    """A zoo entry on this machine. path: None if absent; `missing` says what to do then. size: in bytes."""

    name: str
    path: Path | None
    size: int
    parameters: int
    description: str
    missing: str = ""


def models_dir() -> Path:
    """Return the folder of the shipped GGUF files."""
    return MODELS


def target_path() -> Path:
    """Return the shipped target (Q8_0)."""
    return MODELS / "paceline-target.gguf"


def draft_path() -> Path:
    """Return the shipped draft (F16), which has the target's vocabulary."""
    return MODELS / "paceline-draft.gguf"


def row(name: str) -> ZooEntry:
    """Return the entry of this name. Raises UsageError if there is none."""
    for entry in ZOO_ENTRIES:
        if entry.name == name:
            return entry
    raise UsageError(f"the zoo has no {name!r}: choose from {', '.join(one.name for one in ZOO_ENTRIES)}")


def path(name: str) -> Path:
    """Return the path of a model's file. Raises UsageError with the install command if it is absent."""
    from importlib.metadata import PackageNotFoundError, distribution

    entry = row(name)
    remedy, file = "install Paceline again", MODELS / entry.file
    if entry.wheel:
        remedy = entry.wheel.reinstall
        try:  # the package is not imported
            file = Path(str(distribution(entry.wheel.package).locate_file(entry.file)))
        except PackageNotFoundError:
            remedy = entry.wheel.install
    if not file.is_file():
        raise UsageError(f"zoo:{name} is not on this machine: {remedy}")
    return file


def models() -> list[ZooModel]:
    """Return all models of the zoo, as `paceline zoo list` shows them."""
    found = []
    for entry in ZOO_ENTRIES:
        about = (entry.parameters, entry.description)
        try:
            file = path(entry.name)
        except UsageError as error:
            found.append(ZooModel(entry.name, None, 0, *about, str(error).partition(": ")[2]))
        else:
            found.append(ZooModel(entry.name, file, file.stat().st_size, *about))
    return found


def installed_real_models() -> dict[str, Path]:
    """Return the installed models that are no toys, by the names a user types."""
    paths = {model.name: model.path for model in models() if model.path is not None}
    return {f"zoo:{one.name}": paths[one.name] for one in ZOO_ENTRIES if one.name in paths and not one.toy}
