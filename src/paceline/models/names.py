"""Prefixes of model names that are no paths of GGUF files."""

from __future__ import annotations

import os
from pathlib import Path

TOY, HF, VIEW_PREFIX = "toy:", "hf:", "view:"
MTP_VIEW = f"{VIEW_PREFIX}mtp"  # the target's own layers for multi-token prediction


def is_toy(reference: str | os.PathLike[str]) -> bool:
    """Return True for toy: or toy:seed=3,noise=0.3, unless a file has that name."""
    return os.fspath(reference).startswith(TOY) and not os.path.exists(reference)  # noqa: PTH110


def is_transformers(reference: str | os.PathLike[str]) -> bool:
    """Return True for hf:FOLDER, hf:FILE, or a folder with config.json."""
    # Path.is_file() raises in folders without permission.
    return os.fspath(reference).startswith(HF) or os.path.isfile(os.path.join(reference, "config.json"))  # noqa: PTH113, PTH118


def model_path(reference: Path) -> Path:
    """Return the file or folder without a backend's prefix, to read its header."""
    return Path(os.fspath(reference).removeprefix(HF))


def is_view(reference: str | os.PathLike[str]) -> bool:
    return os.fspath(reference).startswith(VIEW_PREFIX)
