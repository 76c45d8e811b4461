"""A tiny target and draft that ship with Paceline, so that everything can be tried without a download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ZooModel:
    """A shipped model: its role, its file, its size in bytes, its parameter count and what it is."""

    name: str
    path: Path
    size: int
    parameters: int
    description: str


def models_dir() -> Path:
    """The folder of the shipped GGUF files."""
    return Path(__file__).parent / "models"


def target_path() -> Path:
    """The shipped target (Q8_0)."""
    return models_dir() / "paceline-target.gguf"


def draft_path() -> Path:
    """The shipped draft (F16), which has the target's vocabulary."""
    return models_dir() / "paceline-draft.gguf"


def models() -> list[ZooModel]:
    """The shipped models, as `paceline zoo list` shows them; parameters are counted in the files."""
    import gguf

    found = []
    for name, path in (("target", target_path()), ("draft", draft_path())):
        reader = gguf.GGUFReader(path)
        field = reader.get_field("general.description")
        description = str(field.contents()) if field else ""
        count = sum(int(tensor.n_elements) for tensor in reader.tensors)
        found.append(ZooModel(name, path, path.stat().st_size, count, description))
    return found
