"""The prefixes that say which kind of model a name means, where it is no path of a GGUF file."""

from __future__ import annotations

import os
from pathlib import Path

TOY, HF = "toy:", "hf:"
VIEW_PREFIX = "view:"


def is_toy(reference: str | os.PathLike[str]) -> bool:
    """toy: or toy:seed=3,noise=0.3; a file that has such a name is a file."""
    return os.fspath(reference).startswith(TOY) and not os.path.exists(reference)  # noqa: PTH110


def is_transformers(reference: str | os.PathLike[str]) -> bool:
    """hf:FOLDER or hf:FILE; a folder that holds a config.json."""
    # Path's own raises where one may not look.
    return os.fspath(reference).startswith(HF) or os.path.isfile(os.path.join(reference, "config.json"))  # noqa: PTH113, PTH118


def model_path(reference: Path) -> Path:
    """The file or folder itself, whichever engine is to open it: for who reads headers."""
    return Path(os.fspath(reference).removeprefix(HF))


def is_view(reference: str | os.PathLike[str]) -> bool:
    return os.fspath(reference).startswith(VIEW_PREFIX)
