"""The SHA-256 of whole files, each computed once: kept on the disk for as long as the file stays as it is."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paceline.system.home import keep, recall

FOLDER = "hashes"


def sha256_of(path: Path) -> str:
    """In hexadecimal. A file counts as the same while its size, inode and time of last change stay; one of
    a GB takes seconds the first time. Raises OSError."""
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
