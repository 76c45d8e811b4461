"""Where the Hugging Face cache keeps the files of a repository, as huggingface_hub lays it out.

    models--USER--REPO/refs/main              the revision that the name leads to
    models--USER--REPO/snapshots/REV/...      its files, as links
    models--USER--REPO/blobs/HASH             what they lead to

Without symbolic links, as often on Windows, the files themselves are in the snapshots. Where it is told to
share blobs between repositories, huggingface_hub makes HASH a link too, to another folder of the same cache.

A program that lets a server choose names can have been made to put a link here that leads anywhere on this
machine. So a link in a snapshot counts only where it leads to a blob of its own repository.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from paceline.models.stores.places import hub_folder
from paceline.speculative.errors import ModelError

MAX_LINKS = 10  # links in a row

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's hash of a small file, the SHA-256 of a large one
_SHA256 = re.compile(r"(?:sha256[:-])?([0-9a-f]{64})")


def env_flag(*names: str) -> bool:
    """Whether the first of these variables that is there says yes, by the rules of huggingface_hub."""
    lines = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return lines.upper() in ("1", "ON", "YES", "TRUE")


def cache_folder() -> Path:
    """Of now: huggingface_hub reads the environment only once."""
    return hub_folder(os.environ)


def repo_folder(name: str) -> Path:
    return cache_folder() / f"models--{name.replace('/', '--')}"


def current_revision(folder: Path) -> str:
    """Return the revision that a repository's name leads to; empty where that is not told."""
    try:
        with (folder / "refs" / "main").open("rb") as file:
            return file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return ""


def is_repository_file(folder: Path, path: Path) -> bool:
    """Whether a file of a snapshot in a repository's folder is the repository's own, and all there."""
    if not path.is_symlink():
        return path.is_file()
    blob = blob_of(folder, path)
    return blob is not None and is_blob(folder, blob)


def blob_of(folder: Path, pointer: Path) -> Path | None:
    """The blob of this repository that a link leads to; None where it leads elsewhere."""
    target = _real(pointer.parent) / pointer.readlink()
    blobs = folder / "blobs"
    own = _BLOB.fullmatch(target.name) and _real(target.parent) == _real(blobs)
    return blobs / target.name if own else None


def is_blob(folder: Path, blob: Path, size: int | None = None) -> bool:
    """Whether there is such a blob, of this size, in the cache that the repository's folder is in."""
    if blob.is_symlink() and not _real(blob).is_relative_to(_real(folder.parent)):
        return False
    return blob.is_file() and size in (None, blob.stat().st_size)


def _real(path: Path) -> Path:
    """Links followed; Path.resolve() raises for those that lead in circles."""
    return Path(os.path.realpath(path))


def link(folder: Path, pointer: Path, blob: Path, *, new: bool) -> None:
    """Give a blob its name in a snapshot, in the place of whatever has it. new: nothing else leads to the
    blob, so that it may be moved where there are no links."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    if not _real(pointer.parent).is_relative_to(_real(folder)):
        raise ModelError(f"{pointer.parent}: leads out of the cache; delete it, and try again")
    made = pointer.with_name(f".{blob.name[:8]}.{os.getpid()}.paceline")
    made.unlink(missing_ok=True)
    if not _made_link(made, os.path.relpath(blob, pointer.parent)):
        if new:
            made = blob
        else:
            shutil.copyfile(blob, made)
    made.replace(pointer)


def _made_link(link: Path, target: str) -> bool:
    if env_flag("HF_HUB_DISABLE_SYMLINKS"):
        return False
    try:
        link.symlink_to(target)
    except OSError:  # Windows lets only some users make one, and some disks know none
        return False
    return True


def stated_sha256(path: Path) -> str:
    """What a store says that a file's SHA-256 is: the hub's cache and Ollama call the files themselves by it.
    Empty for files of others."""
    for _ in range(MAX_LINKS):
        if found := _SHA256.fullmatch(path.name):
            return found[1]
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return ""
