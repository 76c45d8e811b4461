"""What a file and a processor are known by: hashes and names."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

from paceline.system.home import keep, recall

BLOCK = 1 << 20
FOLDER = "hashes"


@cache
def fingerprint(path: Path) -> str:
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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a whole file, in hexadecimal. It is kept on the disk: a GB takes seconds the
    first time. A file is the same while its size, inode and time of last change stay. Raises OSError."""
    key = _key(path)
    try:
        kept = recall(FOLDER, key).get("sha256")
        if isinstance(kept, str):
            return kept
    except (OSError, ValueError):
        pass
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if key == _key(path):  # what changed while it was read is not what was read
        keep(FOLDER, key, {"sha256": found}, lambda _text: None, "it is computed again the next time")
    return found


def _key(path: Path) -> dict[str, str | int]:
    stat = path.stat()
    return {
        "file": str(path.absolute()),
        "size": stat.st_size,
        "changed": stat.st_mtime_ns,
        "inode": stat.st_ino,
    }
