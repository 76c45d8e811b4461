"""Fingerprints of files and processors, and cached results that depend on files."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from paceline.system.home import load_record, write_record

BLOCK = 1 << 20
T = TypeVar("T")


@cache
def file_fingerprint(path: Path) -> str:
    """Return the SHA-256 over a file's size, first and last MiB.
    The end is weights. A hash of the whole file would take seconds for 20 GB."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(BLOCK))
        file.seek(max(0, size - BLOCK))
        digest.update(file.read(BLOCK))
    return digest.hexdigest()


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def cached(
    folder: str,
    files: Sequence[Path],
    compute: Callable[[], T],
    dump: Callable[[T], Any],
    load: Callable[[Any], T],
) -> T:
    """Return the result of `compute` for these files, cached while size, inode and time of change stay.
    dump, load: convert the result to and from JSON. Raises OSError, and the exceptions of `compute`."""
    key = _stamps(files)
    found = load_record(folder, key, lambda value: load(value["found"]))
    if found is None:
        found = compute()
        if key == _stamps(files):  # no file has changed meanwhile
            write_record(folder, key, {"found": dump(found)}, lambda _: None, "")
    return found


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of(path: Path) -> str:
    """Return the cached SHA-256 of a file, in hexadecimal. Raises OSError."""
    return cached("hashes", [path], lambda: compute_sha256(path), str, str)


def _stamps(files: Sequence[Path]) -> dict[str, list[int]]:
    stats = {str(path.absolute()): path.stat() for path in files}
    return {path: [stat.st_size, stat.st_mtime_ns, stat.st_ino] for path, stat in stats.items()}
