"""The weights in a model's folder, counted without reading them.

Format: a length of eight bytes, and so many bytes of JSON (https://huggingface.co/docs/safetensors)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.models.headers.cursor import Cursor, InvalidFile
from paceline.models.headers.plain_file import MAX_VALUES, exists, open_plain, read_json, reason
from paceline.speculative.errors import ModelError

MAX_HEADER = 64 << 20
MAX_INDEX = 64 << 20
MAX_FILES = 4096
# What packs several weights into one number, or is no weight.
_PACKED = ("I", "U", "B")
_PATH = re.compile(r"[/\\:\0]")


@dataclass(frozen=True)
class WeightFiles:
    """parameters: None where they are packed, or in files that are not read. kind: what most are (BF16)."""

    files: tuple[Path, ...] = ()
    size: int = 0
    parameters: int | None = None
    kind: str = ""


def read_weights(folder: Path) -> WeightFiles:
    """None at all is fine. Raises ModelError where one that an index names is missing, or a file lies."""
    for index, single in (
        ("model.safetensors.index.json", "model.safetensors"),
        ("pytorch_model.bin.index.json", "pytorch_model.bin"),
    ):
        if exists(folder / index):
            files = _listed(folder / index)
        elif exists(folder / single):
            files = [folder / single]
        else:
            continue
        try:
            size = sum(file.stat().st_size for file in files)
        except OSError as error:
            raise ModelError(f"{folder}: {error.filename} {reason(error)}: fetch it too") from error
        if single.endswith(".bin"):
            return WeightFiles(tuple(files), size)
        return _counted(files, size)
    return WeightFiles()


def _listed(index: Path) -> list[Path]:
    table = read_json(index, MAX_INDEX).get("weight_map")
    if not isinstance(table, dict):
        raise ModelError(f"{index}: has no weight_map")
    names = list(dict.fromkeys(str(name) for name in table.values()))
    if len(names) > MAX_FILES or not all(map(_is_name, names)):
        raise ModelError(f"{index}: names files that are not beside it")
    return [index.with_name(name) for name in sorted(names)]


def _is_name(name: str) -> bool:
    """Whether it can be a file's in a folder. JSON can spell half a character, which no path takes."""
    return bool(name.strip(".")) and name.isprintable() and not _PATH.search(name)


def _counted(files: list[Path], size: int) -> WeightFiles:
    elements: dict[str, int] = {}
    for file in files:
        for kind, count in _tensors(file):
            elements[kind] = elements.get(kind, 0) + count
    total = sum(elements.values())
    packed = sum(count for kind, count in elements.items() if kind.startswith(_PACKED) and kind != "BF16")
    most = max(elements, key=lambda kind: elements[kind], default="")
    return WeightFiles(tuple(files), size, None if 100 * packed > total or not total else total, most)


def _tensors(path: Path) -> list[tuple[str, int]]:
    """Type and number of elements of each tensor."""
    with open_plain(path) as file:
        try:
            cursor = Cursor(file, file.seek(0, 2))
            file.seek(0)
            raw = cursor.string(MAX_HEADER, "the header")
            if sum(map(raw.count, (b",", b"[", b"{"))) > MAX_VALUES:
                raise InvalidFile("has more tensors than any model needs")
            said = json.loads(raw)
            if not isinstance(said, dict):
                raise InvalidFile("its header is no JSON object")
            return [_tensor(name, it, cursor.left) for name, it in said.items() if name != "__metadata__"]
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: is no safetensors file ({error})") from error
        except InvalidFile as refused:
            raise ModelError(f"{path}: {refused}") from None
        except OSError as error:
            raise ModelError(f"{path}: {reason(error)}") from error


def _tensor(name: str, said: Any, room: int) -> tuple[str, int]:
    if isinstance(said, Mapping):
        kind, shape, span = said.get("dtype"), said.get("shape"), said.get("data_offsets")
        if (
            isinstance(kind, str)
            and isinstance(shape, list)
            and all(type(n) is int and 0 <= n < 1 << 48 for n in shape)
            and len(shape) <= 16
            and isinstance(span, list)
            and len(span) == 2
            and all(type(n) is int for n in span)
        ):
            if not 0 <= span[0] <= span[1] <= room:
                raise InvalidFile(
                    f"tensor {name[:64]!r} ends behind the end of the file: it was not downloaded whole, "
                    "fetch it again"
                )
            return kind, math.prod(shape)
    raise InvalidFile(f"its tensor {name[:64]!r} is not described as safetensors does")
