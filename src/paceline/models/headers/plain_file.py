"""Open untrusted files: regular files only, never blocking on a pipe."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.validation import did_you_mean
from paceline.system.strict_json import parse_json

MAX_HEADER_BYTES = 64 << 20  # of safetensors


def open_regular_file(path: Path) -> BinaryIO:
    """Open a regular file for reading, links followed. Raises ModelError for anything else."""
    try:
        # Opening a pipe without a writer would block.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ModelError(f"{path}: {os_error_reason(error)}{similar_files(path)}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ModelError(f"{path}: is neither a file nor a folder; give the path of a model")
    return file


def require_gguf_path(path: Path) -> None:
    """Raise UsageError if there is no file; ModelError for what is no file, and for an unreadable one."""
    if path.is_dir():
        raise ModelError(f"{path}: {no_model_folder(path)}")
    if not path.exists():
        raise UsageError(f"{path}: no such file{similar_files(path)}; give the path of a .gguf model")
    open_regular_file(path).close()


def no_model_folder(folder: Path) -> str:
    """Return what is wrong with a folder that is no model's. Raises OSError for one that cannot be read."""
    files = sorted(entry.name for entry in islice(folder.iterdir(), 1000))
    found = next((repr(name) for name in files if name.lower().endswith(".gguf")), "a model's folder")
    return f"is a folder without config.json: name a GGUF file, such as {found}"


def similar_files(path: Path) -> str:
    """Return a question with the files beside a missing one that have nearly its name, or ""."""
    with suppress(OSError, ValueError):  # no such folder either, or a NUL
        return did_you_mean(path.name, [entry.name for entry in path.parent.iterdir()])
    return ""


def exists(path: Path) -> bool:
    """Return whether a path exists; False in a folder without permission, where Path.exists() raises."""
    return os.path.exists(path)  # noqa: PTH110


def is_encodable_path(text: str) -> bool:
    """Return False for a NUL or a lone surrogate, which JSON can contain and open() rejects."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def read_text(path: Path, limit: int) -> str:
    """Read a text file. Raises ModelError for more than `limit` bytes and for invalid UTF-8."""
    try:
        with open_regular_file(path) as file:
            content = file.read(limit + 1)
        if len(content) <= limit:
            return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {os_error_reason(error)}") from error
    raise ModelError(f"{path}: has more than {limit >> 20} MiB, which such a file does not need")


def read_json(path: Path, limit: int = 8 << 20) -> dict[str, Any]:
    """Read a JSON object. Raises ModelError for anything else, more than `limit` bytes, or deep nesting."""
    try:
        return parse_json(read_text(path, limit))
    except ValueError as error:
        raise ModelError(f"{path}: is no JSON ({error})") from error


def read_tensors(file: Path) -> dict[str, tuple[str, int]]:
    """Return types and bytes of a safetensors file's tensors, {} for other files. Raises ModelError."""
    if file.suffix != ".safetensors":
        return {}
    with open_regular_file(file) as data:
        try:
            header = parse_json(data.read(min(MAX_HEADER_BYTES, int.from_bytes(data.read(8), "little"))))
            header.pop("__metadata__", None)
            found = {name: (entry["dtype"], entry["data_offsets"]) for name, entry in header.items()}
            return {name: (str(dtype), end - start) for name, (dtype, (start, end)) in found.items()}
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(f"{file}: is cut short or damaged ({error}): fetch it again") from error


def os_error_reason(error: OSError | ValueError) -> str:
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
