"""The Hugging Face cache, where llama.cpp keeps its downloads as well (common/hf-cache.cpp).

    models--USER--REPO/refs/main              the current revision
    models--USER--REPO/snapshots/REV/...      links to the files of a revision
    models--USER--REPO/blobs/HASH             the files

Without symbolic links, as often on Windows, the snapshots hold the files. With blobs shared between
repositories, HASH is itself a link to another folder of the same cache.

A program that lets a server choose names may have created links that lead anywhere on this machine. So a link
in a snapshot counts only if it leads to a blob of the same repository."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.models.stores import reference
from paceline.models.stores.reference import LocalFile, Reference, is_name_of, matching_variants
from paceline.models.stores.search import HUB, FolderSearch, ModelCandidate, hub_folder, walk
from paceline.speculative.errors import ModelError, UsageError

REPOSITORY = "models--"  # prefix of a repository's folder

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's hash of a small file, the SHA-256 of a large one
_SHA256 = re.compile(r"(?:sha256[:-])?([0-9a-f]{64})")


def env_flag(*names: str) -> bool:
    """Return whether the first variable that is set means yes, by the rules of huggingface_hub."""
    value = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return value.upper() in ("1", "ON", "YES", "TRUE")


def repo_folder(name: str) -> Path:
    """Return a repository's folder by the current environment; huggingface_hub reads it only once."""
    return hub_folder(os.environ) / f"{REPOSITORY}{name.replace('/', '--')}"


def current_revision(folder: Path) -> str:
    """Return the current revision of a repository's folder; empty if unknown."""
    with suppress(OSError), (folder / "refs" / "main").open("rb") as file:
        return file.read(100).decode("ascii", "replace").strip()
    return ""


def is_repository_file(folder: Path, path: Path) -> bool:
    """Return whether a file of a snapshot is complete and belongs to this repository."""
    if not path.is_symlink():
        return path.is_file()
    blob = blob_of(folder, path)
    return blob is not None and is_blob(folder, blob)


def blob_of(folder: Path, pointer: Path) -> Path | None:
    """Return the blob of this repository that a link leads to; None if it leads elsewhere."""
    target = _real(pointer.parent) / pointer.readlink()
    blobs = folder / "blobs"
    own = _BLOB.fullmatch(target.name) and _real(target.parent) == _real(blobs)
    return blobs / target.name if own else None


def is_blob(folder: Path, blob: Path, size: int | None = None) -> bool:
    """Return whether a blob exists inside the cache, with this size."""
    if blob.is_symlink() and not _real(blob).is_relative_to(_real(folder.parent)):
        return False
    return blob.is_file() and size in (None, blob.stat().st_size)


def _real(path: Path) -> Path:
    """Follow all links, like Path.resolve(), which raises for circular links."""
    return Path(os.path.realpath(path))


def link(folder: Path, pointer: Path, blob: Path, *, new: bool) -> None:
    """Put a link to a blob, or a copy of it, into a snapshot, replacing what has that name.
    new: no other link leads to the blob, so it may be moved if links are impossible.
    Raises ModelError if the snapshot leads out of the cache."""
    pointer.parent.mkdir(parents=True, exist_ok=True)
    if not _real(pointer.parent).is_relative_to(_real(folder)):
        raise ModelError(f"{pointer.parent}: leads out of the cache; delete it, and try again")
    made = pointer.with_name(f".{blob.name[:8]}.{os.getpid()}.paceline")
    made.unlink(missing_ok=True)
    with suppress(OSError):  # not permitted on Windows, or not supported by the disk
        if not env_flag("HF_HUB_DISABLE_SYMLINKS"):
            made.symlink_to(os.path.relpath(blob, pointer.parent))
    if not made.is_symlink():
        if new:
            made = blob
        else:
            shutil.copyfile(blob, made)
    made.replace(pointer)


def stated_sha256(path: Path) -> str:
    """Return the SHA-256 in the file name of a blob of the hub's cache or Ollama; empty for other files."""
    found = _SHA256.fullmatch(path.name) or _SHA256.fullmatch(_real(path).name)
    return found[1] if found else ""


def find_cached(wanted: Reference) -> list[LocalFile]:
    """Return the cached files of a model or a draft head: of the current revision, else of an older one.
    Raises UsageError if no revision is complete."""
    folder = repo_folder(wanted.name)
    started = any((folder / "blobs").glob("*.incomplete"))
    for snapshot in _snapshots(folder):
        found = _file_names(folder, snapshot)
        models = reference.selectable(found, wanted.tag)
        matching = matching_variants(models, wanted.tag) if wanted.tag else models
        complete = [name for variant in matching if not variant.missing for name in variant.files]
        started |= bool(matching)
        names = reference.select_variant(complete, wanted.tag, wanted.name) if complete else ()
        if names := names or (() if wanted.tag else reference.head_files(found)):
            paths = [snapshot / name for name in names]
            return [LocalFile(path, path.stat().st_size, stated_sha256(path)) for path in paths]
    some = "not completely" if started else "not"
    raise UsageError(f"{wanted} is {some} on this machine: paceline pull {wanted}")


def folder_in_cache(reference: Reference) -> Path:
    """Return the newest cached folder of a transformers model. Raises UsageError if there is none."""
    for folder in _snapshots(repo_folder(reference.name)):
        if (folder / "config.json").is_file():
            return folder
    name = reference.name
    raise UsageError(f"hf:{name}: is not in the hub's cache on this machine: hf download {name}")


def _file_names(folder: Path, snapshot: Path) -> list[str]:
    paths = (path for path in snapshot.rglob("*") if is_repository_file(folder, path))
    return [path.relative_to(snapshot).as_posix() for path in paths]


def _snapshots(folder: Path) -> list[Path]:
    """Return a repository's snapshot folders: the current revision first, then the newest."""
    current = current_revision(folder)
    found = (folder / "snapshots").glob("*/")
    return sorted(found, key=lambda path: (path.name == current, path.stat().st_mtime), reverse=True)


def candidates(folder: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    """Yield the models of one repository."""
    partial = search.folder(folder / "blobs", (".incomplete",))
    if unfinished := sum(not entry.is_dir() for entry in partial):
        search.add_note(folder, f"{unfinished} of its files are being downloaded, or were left half-way")
    main = current_revision(folder)
    for snapshot in search.folder(folder / "snapshots"):
        if snapshot.is_dir():
            repository = folder.name.removeprefix(REPOSITORY).replace("--", "/")
            names = _names(repository, folder, Path(snapshot.path)) if snapshot.name == main else {}
            for path in walk(Path(snapshot.path), search):
                yield ModelCandidate(path, names.get(path, str(path)), HUB)


def _names(repository: str, folder: Path, snapshot: Path) -> dict[Path, str]:
    """Return a reference for each GGUF model or head, by its first file: USER/REPO:QUANT or :FILE."""
    try:
        found = _file_names(folder, snapshot)
    except OSError:
        return {}
    names, models = {}, [*reference.variants(found), *reference.variants(found, heads=True)]
    for model in models:
        for tag in (model.files[0].rpartition("/")[2], model.label):  # the last unambiguous tag wins
            name = f"{repository}:{tag}"
            typeable = is_name_of(name, Reference(reference.HUB, repository, tag))
            if typeable and not model.missing and matching_variants(models, tag) == [model]:
                names[snapshot / model.files[0]] = name
    return names
