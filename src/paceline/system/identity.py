"""What a measurement belongs to: this model's file, this processor."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from pathlib import Path

BLOCK = 1 << 20


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
