"""The user's folder for corpora, past outputs and measurements, the records in it, fingerprints of files and
processors, and results that are cached by them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from paceline.speculative.errors import UsageError
from paceline.system.atomic import atomic_write

FORMAT = 1  # of a record

Key = Mapping[str, Any]  # all that a record depends on, as JSON
Warn = Callable[[str], None]
T = TypeVar("T")


def to_stderr(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr, flush=True)


def home() -> Path:
    """Return PACELINE_HOME, or the platform's folder for application data. It need not exist."""
    if given := os.environ.get("PACELINE_HOME"):
        path = expand_user(given)
        if str(path).startswith("~"):
            raise UsageError(f"PACELINE_HOME={given}: there is no such home directory; write the path out")
        return path.absolute()
    from platformdirs import user_data_path

    return user_data_path("paceline")


def caches() -> tuple[Path, ...]:
    """Return the cache folders, the preferred one first. They need not exist."""
    from platformdirs import user_cache_path

    given = (home(),) if os.environ.get("PACELINE_HOME") else ()
    return *given, user_cache_path("paceline")


def record_path(folder: str, key: Key) -> Path:
    """Return the file of the record for `key`."""
    text = json.dumps(key, sort_keys=True)
    return home() / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def load_record(
    folder: str,
    key: Key,
    read: Callable[[dict[str, Any]], T],
    warn: Warn = lambda _: None,
    otherwise: str = "",
) -> T | None:
    """Return the record that `write_record` wrote for this key, converted by `read`; None without one.
    warn: called for a file that cannot be used, with the consequence, `otherwise`."""
    path = record_path(folder, key)
    reason = "is damaged, or of another version"
    try:
        data = json.loads(path.read_bytes())
        if data["format"] == FORMAT and data["key"] == json.loads(json.dumps(key)):
            return read(data)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, UsageError):
        pass
    warn(f"{path}: {reason}; {otherwise}")
    return None


def write_record(folder: str, key: Key, found: Mapping[str, Any], warn: Warn, otherwise: str) -> bool:
    """Write a record. If that fails, call `warn` with the consequence, `otherwise`, and return False."""
    path = record_path(folder, key)
    try:
        write_atomic(path, json.dumps({"format": FORMAT, "key": key, **found}, allow_nan=False))
    except OSError as error:
        warn(f"{path}: cannot be written ({error.strerror}); {otherwise}")
        return False
    return True


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents, readable by the user only. Raises OSError."""
    missing = [parent for parent in path.parents if not parent.exists()]
    for folder in (*reversed(missing), path):
        folder.mkdir(mode=0o700, exist_ok=True)


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Expand ~ and ~USER; return the path unchanged without such a user, for which Path.expanduser raises."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically, readable by the user only, and create its folder. Raises OSError."""
    make_private_folder(path.parent)
    with atomic_write(path, private=True) as part:
        part.write_text(text, "utf-8")


BLOCK = 1 << 20


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
