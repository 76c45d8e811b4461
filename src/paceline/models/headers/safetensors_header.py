"""The weight files of a model's folder, and their size."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.models.headers.plain_file import exists, os_error_reason, read_json
from paceline.speculative.errors import ModelError

MAX_INDEX = 64 << 20
MAX_FILES = 4096
_PATH = re.compile(r"[/\\:\0]")


def read_weights(folder: Path) -> tuple[list[Path], int]:
    """Return the weight files of a folder, if any, and their bytes. Raises ModelError for a missing one."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        files = _listed(index) if exists(index) else [folder / name] if exists(folder / name) else []
        try:
            if files:
                return files, sum(file.stat().st_size for file in files)
        except OSError as error:
            raise ModelError(f"{folder}: {error.filename} {os_error_reason(error)}: fetch it too") from error
    return [], 0


def _listed(index: Path) -> list[Path]:
    table = read_json(index, MAX_INDEX).get("weight_map")
    if not isinstance(table, dict):
        raise ModelError(f"{index}: has no weight_map")
    names = {str(name) for name in table.values()}
    if len(names) > MAX_FILES or not all(map(_is_name, names)):
        raise ModelError(f"{index}: names files that are not beside it")
    return [index.with_name(name) for name in sorted(names)]


def _is_name(name: str) -> bool:
    """Return whether a name is a valid file name without folders; lone surrogates are not printable."""
    return bool(name.strip(".")) and name.isprintable() and not _PATH.search(name)
