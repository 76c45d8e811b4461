"""What files and processors are known by; and what was computed from files, kept while these stay."""

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
    """sha256 over a file's size, first and last MiB (the end is weights): not a hash of the whole file, which
    would take seconds on a 20 GB model."""
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
    """Return what `compute` makes of these files. dump, load: to JSON, and from it. A file counts as the same
    while its size, inode and time of last change stay. Raises OSError, and what `compute` raises."""
    key = _stamps(files)
    found = load_record(folder, key, lambda value: load(value["found"]))
    if found is None:
        found = compute()
        if key == _stamps(files):  # what changed while it was read is not what was read
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
