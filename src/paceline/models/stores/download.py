"""Models of the Hugging Face hub: found in its cache on this machine, and downloaded into it.

huggingface_hub authenticates and fetches, and its cache is shared with other programs. `hf_hub_download`
throws away what it has of a file when it is interrupted (since 1.18, huggingface_hub#4196), which for 40 GB
is a day's work on some lines. So what is here of a file stays beside the cache's blobs until it is complete
and has the hash that the hub states; only then does it become a blob.

Files get their names here, too: huggingface_hub takes the names of blob and snapshot from the headers of an
answer as they are, which lets a server write wherever the user may.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from paceline.models.stores.hub_api import (
    RemoteFile,
    endpoint,
    headers,
    listing,
    reason,
    translate_hub_errors,
)
from paceline.models.stores.hub_layout import (
    blob_of,
    cache_folder,
    current_revision,
    env_flag,
    is_blob,
    is_repository_file,
    link,
    repo_folder,
    stated_sha256,
)
from paceline.models.stores.reference import LocalFile, Reference, matching_variants, select_variant, variants
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.printable import format_count
from paceline.system.whole import atomic_write

BUSY = 0.2  # seconds to wait for another process that downloads the same file

ProgressCallback = Callable[
    [str, int, int], None
]  # a file's name, bytes of it that are here, bytes of all of it


def find_cached(reference: Reference) -> list[LocalFile]:
    """The files of a hub's model that are on this machine already: of the revision that was the current one
    when the hub was asked last, else of an older one. Raises UsageError where they are not."""
    partly = False
    folder = repo_folder(reference.name)
    for snapshot in _snapshots(folder):
        own = (path for path in snapshot.rglob("*") if is_repository_file(folder, path))
        models = variants(path.relative_to(snapshot).as_posix() for path in own)
        found = matching_variants(models, reference.tag) if reference.tag else models
        whole = [name for one in found if not one.missing for name in one.files]
        partly |= bool(found)
        if whole:
            return [
                _local_file(snapshot / name) for name in select_variant(whole, reference.tag, reference.name)
            ]
    began = any((repo_folder(reference.name) / "blobs").glob("*.incomplete"))
    some = "not completely" if partly or began else "not"
    raise UsageError(f"{reference} is {some} on this machine: paceline pull {reference}")


def folder_in_cache(reference: Reference) -> Path:
    """Of a transformers model in the hub's cache, the current version's folder. Raises UsageError."""
    for folder in _snapshots(repo_folder(reference.name)):
        if (folder / "config.json").is_file():
            return folder
    raise UsageError(
        f"hf:{reference.name}: is not in the hub's cache on this machine: hf download {reference.name}"
    )


def _snapshots(folder: Path) -> list[Path]:
    """Return the current one first, then the newest."""
    current = current_revision(folder)
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: (path.name == current, path.stat().st_mtime), reverse=True)


def _local_file(path: Path) -> LocalFile:
    return LocalFile(path, path.stat().st_size, stated_sha256(path))


def pull(reference: Reference, watch: ProgressCallback, *, offline: bool = False) -> list[LocalFile]:
    """All files of a hub's model, downloaded where they are not here yet; what an earlier call has left of
    them is used. watch is called often, and may raise. Raises UsageError, ModelError or PacelineError."""
    if offline or env_flag("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        return find_cached(reference)
    name = reference.name
    with translate_hub_errors(name):
        commit, remotes = listing(name)
        chosen = [remotes[file] for file in select_variant(remotes, reference.tag, name)]
        cached = [_get(name, commit, one, watch) for one in chosen]
    # Where programs that are offline look up what `main` is.
    ref = repo_folder(name) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(ref) as part:
        part.write_text(commit)
    return cached


def _blob(folder: Path, remote: RemoteFile) -> Path:
    return folder / "blobs" / remote.sha256


def _is_here(folder: Path, pointer: Path, remote: RemoteFile) -> bool:
    """Whether a name in a snapshot is that of this very file, as far as its size and its blob's name tell."""
    if pointer.is_symlink():
        return blob_of(folder, pointer) == _blob(folder, remote) and is_blob(
            folder, _blob(folder, remote), remote.size
        )
    return pointer.is_file() and pointer.stat().st_size == remote.size


def _get(name: str, commit: str, remote: RemoteFile, watch: ProgressCallback) -> LocalFile:
    folder = repo_folder(name)
    pointer, blob = folder / "snapshots" / commit / remote.name, _blob(folder, remote)
    if _is_here(folder, pointer, remote):
        return LocalFile(pointer, remote.size, stated_sha256(pointer))
    got, checked = 0, False
    if not is_blob(folder, blob, remote.size):
        got, checked = _fetch(name, commit, remote, watch)
    link(folder, pointer, blob, new=got > 0)
    return LocalFile(pointer, remote.size, remote.sha256, got, checked)


def _fetch(name: str, commit: str, remote: RemoteFile, watch: ProgressCallback) -> tuple[int, bool]:
    """Make the cache's blob, complete; how many bytes came for it, and whether its SHA-256 was compared."""
    from filelock import Timeout
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = repo_folder(name)
    lock = cache_folder() / ".locks" / folder.name / f"{remote.sha256}.lock"  # huggingface_hub's own
    url = hf_hub_url(name, remote.name, revision=commit, endpoint=endpoint())
    part = folder / "blobs" / f"{remote.sha256}.paceline.incomplete"
    lock.parent.mkdir(parents=True, exist_ok=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    came = 0
    try:
        with WeakFileLock(lock, timeout=BUSY):
            if is_blob(folder, _blob(folder, remote), remote.size):
                return 0, False  # by now: another process had the lock, and is done
            have = part.stat().st_size if part.exists() else 0
            free = shutil.disk_usage(part.parent).free
            if remote.size - have > free:  # said before hours of downloading, not after
                raise PacelineError(
                    f"{remote.name} has {format_count(remote.size)}, and {part.parent} "
                    f"{format_count(free)} free: make room, or name another folder with HF_HUB_CACHE"
                )
            came += _fill(part, url, remote, watch)
            if have and _sha256(part) != remote.sha256:
                part.unlink()  # what was there was damaged, as a crash of the system leaves it
                came += _fill(part, url, remote, watch)
            _require_hash(part, remote)
            part.replace(_blob(folder, remote))
            return came, True
    except Timeout as error:
        raise PacelineError(
            f"{remote.name}: is being downloaded by another process; wait for that"
        ) from error


class _DownloadFile:
    """The file that http_get writes to: it tells how much is there, and takes no more than was promised."""

    def __init__(self, file: BinaryIO, remote: RemoteFile, watch: ProgressCallback) -> None:
        self._file, self._remote, self._watch = file, remote, watch
        self.came = 0
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate

    def write(self, piece: bytes) -> int:
        if self._file.tell() + len(piece) > self._remote.size:
            raise PacelineError(
                f"{self._remote.name}: more than the {self._remote.size:,} bytes come that were promised; "
                "try again"
            )
        self.came += len(piece)
        self._file.write(piece)
        self._file.flush()  # whenever the process ends, what came is kept
        self._watch(self._remote.name, self._file.tell(), self._remote.size)
        return len(piece)


def _fill(path: Path, url: str, remote: RemoteFile, watch: ProgressCallback) -> int:
    """Fetch what is missing of a file, and return how many bytes came."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

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
                tqdm_class=_silent_progress_bar(),
            )
        except (PacelineError, HfHubHTTPError):
            raise
        except ValueError as error:  # above 50 GB the hub gives files over Xet only
            raise PacelineError(
                f"{remote.name}: has {format_count(remote.size)}, which plain HTTP does not give: choose a "
                "quantisation that is split, or get it with `hf download`"
            ) from error
        except (httpx2.TransportError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # of this machine, not of the line
                raise
            raise PacelineError(
                f"{remote.name}: the connection is lost ({reason(error)}) after "
                f"{format_count(file.tell())} of {format_count(remote.size)}: "
                "the same command goes on from there"
            ) from error
        os.fsync(file.fileno())  # a name that says it is complete must not outlive its bytes
    return growing.came


def _silent_progress_bar() -> Any:
    """The progress bar of huggingface_hub, switched off: what comes is told by `watch`."""
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # type: ignore[misc]  # huggingface_hub is untyped here
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})

    return Silent


def _require_hash(path: Path, remote: RemoteFile) -> None:
    found = _sha256(path)
    if found != remote.sha256:
        path.unlink()
        raise ModelError(
            f"{remote.name}: the hub states the SHA-256 {remote.sha256}, what came has {found}: it was "
            "thrown away; try again, and do not trust it if this stays so"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
