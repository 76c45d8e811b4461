"""Find models in the Hugging Face cache, and download models into it.

`hf_hub_download` discards a partial file when it is interrupted (since 1.18, huggingface_hub#4196), so
downloads of large files would never finish on slow lines. A partial file is therefore kept beside the cache's
blobs, and becomes a blob once it has the hash that the hub states.

File names are chosen here as well: huggingface_hub takes the names of blob and snapshot from the response
headers unchecked, which lets a server write anywhere the user may.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

from paceline.models.stores.hub_api import (
    RemoteFile,
    endpoint,
    headers,
    listing,
    reason,
    translate_hub_errors,
)
from paceline.models.stores.hub_cache import (
    blob_of,
    current_revision,
    env_flag,
    is_blob,
    is_repository_file,
    link,
    repo_folder,
    stated_sha256,
)
from paceline.models.stores.reference import (
    LocalFile,
    Reference,
    head_files,
    matching_variants,
    select_variant,
    variants,
)
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.printable import format_bytes
from paceline.system.identity import compute_sha256
from paceline.system.whole import atomic_write

SHA256_CHARACTERS = 64
BUSY = 0.2  # seconds to wait for another process that downloads the same file

ProgressCallback = Callable[[str, int, int], None]  # file name, bytes present, total bytes


def find_cached(reference: Reference) -> list[LocalFile]:
    """Return the cached files of a model or a draft head: of the current revision, else of an older one.

    Raises UsageError if no revision is complete.
    """
    partly = False
    folder = repo_folder(reference.name)
    for snapshot in _snapshots(folder):
        files = [path for path in snapshot.rglob("*") if is_repository_file(folder, path)]
        found = [path.relative_to(snapshot).as_posix() for path in files]
        models = variants(found)
        matching = matching_variants(models, reference.tag) if reference.tag else models
        complete = [name for variant in matching if not variant.missing for name in variant.files]
        partly |= bool(matching)
        names = select_variant(complete, reference.tag, reference.name) if complete else ()
        if names := names or (() if reference.tag else head_files(found)):
            paths = [snapshot / name for name in names]
            return [LocalFile(path, path.stat().st_size, stated_sha256(path)) for path in paths]
    started = any((folder / "blobs").glob("*.incomplete"))
    some = "not completely" if partly or started else "not"
    raise UsageError(f"{reference} is {some} on this machine: paceline pull {reference}")


def folder_in_cache(reference: Reference) -> Path:
    """Return the newest cached folder of a transformers model. Raises UsageError if there is none."""
    for folder in _snapshots(repo_folder(reference.name)):
        if (folder / "config.json").is_file():
            return folder
    raise UsageError(
        f"hf:{reference.name}: is not in the hub's cache on this machine: hf download {reference.name}"
    )


def _snapshots(folder: Path) -> list[Path]:
    """Return a repository's snapshot folders: the current revision first, then the newest."""
    current = current_revision(folder)
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: (path.name == current, path.stat().st_mtime), reverse=True)


def pull(reference: Reference, watch: ProgressCallback, *, offline: bool = False) -> list[LocalFile]:
    """Return all files of a model after downloading what is missing; partial downloads are resumed.

    watch: called after every chunk; its exceptions end the download.
    Raises UsageError, ModelError or PacelineError.
    """
    if offline or env_flag("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        return find_cached(reference)
    name = reference.name
    with translate_hub_errors(name):
        commit, remotes = listing(name)
        head = () if reference.tag else head_files(remotes)
        selected = [remotes[file] for file in head or select_variant(remotes, reference.tag, name)]
        files = [_get(name, commit, remote, watch) for remote in selected]
        # Offline programs look up the current revision here.
        ref = repo_folder(name) / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(ref) as part:
            part.write_text(commit)
    return files


def _get(name: str, commit: str, remote: RemoteFile, watch: ProgressCallback) -> LocalFile:
    folder = repo_folder(name)
    pointer, blob = folder / "snapshots" / commit / remote.name, folder / "blobs" / remote.digest
    blob_complete = is_blob(folder, blob, remote.size)
    if pointer.is_symlink():
        present = blob_complete and blob_of(folder, pointer) == blob
    else:
        present = pointer.is_file() and pointer.stat().st_size == remote.size
    if present:
        return LocalFile(pointer, remote.size, stated_sha256(pointer))
    received = 0 if blob_complete else _fetch(name, commit, remote, blob, watch)
    link(folder, pointer, blob, new=received > 0)
    return LocalFile(pointer, remote.size, stated_sha256(blob), received, hash_verified=received > 0)


def _digest(path: Path, remote: RemoteFile) -> str:
    """Return the hash of a file that the hub states of this one, too."""
    if len(remote.digest) == SHA256_CHARACTERS:
        return compute_sha256(path)
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _fetch(name: str, commit: str, remote: RemoteFile, blob: Path, watch: ProgressCallback) -> int:
    """Download a blob and verify its SHA-256. Return the bytes received."""
    from filelock import Timeout
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = repo_folder(name)
    lock = folder.parent / ".locks" / folder.name / f"{remote.digest}.lock"  # as huggingface_hub names it
    url = hf_hub_url(name, remote.name, revision=commit, endpoint=endpoint())
    part = blob.with_name(f"{blob.name}.paceline.incomplete")
    lock.parent.mkdir(parents=True, exist_ok=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=BUSY):
            if is_blob(folder, blob, remote.size):
                return 0  # another process has finished it meanwhile
            have = part.stat().st_size if part.exists() else 0
            free = shutil.disk_usage(part.parent).free
            if remote.size - have > free:
                raise PacelineError(
                    f"{remote.name} has {format_bytes(remote.size)}, and {part.parent} "
                    f"{format_bytes(free)} free: make room, or name another folder with HF_HUB_CACHE"
                )
            received = _fill(part, url, remote, watch)
            if have and _digest(part, remote) != remote.digest:
                part.unlink()  # the resumed part was damaged, as by a system crash
                received += _fill(part, url, remote, watch)
            if (actual := _digest(part, remote)) != remote.digest:
                part.unlink()
                raise ModelError(
                    f"{remote.name}: the hub states the hash {remote.digest}, what came has {actual}: it "
                    "was thrown away; try again, and do not trust it if this stays so"
                )
            part.replace(blob)
            return received
    except Timeout as error:
        raise PacelineError(
            f"{remote.name}: is being downloaded by another process; wait for that"
        ) from error


class _DownloadFile:
    """A file for http_get that reports progress and refuses more bytes than the hub stated."""

    def __init__(self, file: BinaryIO, remote: RemoteFile, watch: ProgressCallback) -> None:
        self._file, self._remote, self._watch = file, remote, watch
        self.received = 0
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate

    def write(self, piece: bytes) -> int:
        if self._file.tell() + len(piece) > self._remote.size:
            raise PacelineError(
                f"{self._remote.name}: more than the {self._remote.size:,} bytes come that were promised; "
                "try again"
            )
        self.received += len(piece)
        self._file.write(piece)
        self._file.flush()  # so that a killed process keeps what it received
        self._watch(self._remote.name, self._file.tell(), self._remote.size)
        return len(piece)


def _fill(path: Path, url: str, remote: RemoteFile, watch: ProgressCallback) -> int:
    """Download the missing end of a file, and return the number of bytes received."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import tqdm

    with path.open("ab") as file:
        if file.tell() > remote.size:
            file.truncate(0)
        done = file.seek(0, os.SEEK_END)
        watch(remote.name, done, remote.size)
        growing = _DownloadFile(file, remote, watch)
        try:
            http_get(
                url,
                cast("BinaryIO", growing),
                resume_size=done,
                headers=headers(),
                expected_size=remote.size,
                displayed_filename=remote.name,
                tqdm_class=partial(tqdm, disable=True),  # `watch` reports the progress
            )
        except (PacelineError, HfHubHTTPError):
            raise
        except ValueError as error:  # above 50 GB the hub gives files over Xet only
            raise PacelineError(
                f"{remote.name}: has {format_bytes(remote.size)}, which plain HTTP does not give: choose a "
                "quantisation that is split, or get it with `hf download`"
            ) from error
        except (httpx2.TransportError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # a local failure, such as a full disk
                raise
            raise PacelineError(
                f"{remote.name}: the connection is lost ({reason(error)}) after "
                f"{format_bytes(file.tell())} of {format_bytes(remote.size)}: "
                "the same command goes on from there"
            ) from error
        os.fsync(file.fileno())  # the bytes must be on disk before the blob gets its name
    return growing.received
