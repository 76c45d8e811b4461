"""Model files whose weights are damaged, so that their logits are not numbers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from paceline.models import zoo

TOKEN = 7  # whose output row alone is damaged


def _everywhere(value: float) -> Callable[[dict[str, Any]], None]:
    def damage(tensors: dict[str, Any]) -> None:
        tensors["output_norm.weight"][:] = value

    return damage


def _one_row(tensors: dict[str, Any]) -> None:
    tensors["token_embd.weight"][TOKEN] = np.nan  # which is the output's too


def _values_too_large(tensors: dict[str, Any]) -> None:
    tensors["blk.0.ffn_down.weight"][:] = 6e4
    tensors["blk.0.ffn_norm.weight"][:] = 1e38


DAMAGES = {
    "NaN everywhere": _everywhere(np.nan),
    "infinite norm": _everywhere(np.inf),
    "NaN in one token's row": _one_row,
    "values too large": _values_too_large,
}


def write_damaged(path: Path, damage: str) -> Path:
    """A copy of the embedded draft."""
    shutil.copyfile(zoo.draft_path(), path)
    reader = gguf.GGUFReader(path, "r+")
    DAMAGES[damage]({tensor.name: tensor.data for tensor in reader.tensors})
    reader.data.flush()
    return path
