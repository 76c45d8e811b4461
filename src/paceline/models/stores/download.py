"""Download models from the Hugging Face hub (or HF_ENDPOINT) into its cache.

`hf_hub_download` discards a partial file when it is interrupted (since 1.18, huggingface_hub#4196), so
downloads of large files would never finish on slow lines. A partial file is therefore kept beside the cache's
blobs, and becomes a blob once it has the hash that the hub states.

File names come from the listing alone and are validated: huggingface_hub takes the names of blob and snapshot
from the response headers unchecked, which lets a server write anywhere the user may."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from paceline.models.stores import hub_cache
from paceline.models.stores.reference import LocalFile, Reference, head_files, select_variant
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.printable import format_bytes, truncated
from paceline.system.atomic import atomic_write
from paceline.system.home import compute_sha256

HOST = "https://huggingface.co"
LOG_IN = "log in (HF_TOKEN, or `hf auth login`)"
MAKE_ROOM = "make room there, or name another folder with HF_HUB_CACHE"
HUB_TIMEOUT_SECONDS = 30.0
MAX_SMALL_BYTES = 16 << 20  # of a file that git itself has
BUSY = 0.2  # seconds to wait for another process that downloads the same file

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
ProgressCallback = Callable[[str, int, int], None]  # file name, bytes present, total bytes


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. digest: the SHA-256 of a large file, git's hash of a small one; also the name
    of its blob in the cache."""

    name: str
    size: int
    digest: str


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HOST).rstrip("/")


def host() -> str:
    return _endpoint().partition("://")[2] or _endpoint()


def _listing(name: str) -> tuple[str, dict[str, RemoteFile]]:
    """Return a repository's current revision, and its GGUF files or a draft head's by name."""
    try:
        from huggingface_hub import HfApi  # parses HF_ENDPOINT

        api = HfApi(_endpoint(), library_name="paceline")
        info = api.model_info(name, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS)
        commit, siblings = str(info.sha), {str(it.rfilename): it for it in info.siblings or ()}
        # Small files without LFS are no models.
        names = [name for name, it in siblings.items() if name.lower().endswith(".gguf") and it.lfs]
        files = [_remote(siblings[name]) for name in (*names, *head_files(siblings))]
        if not _COMMIT.fullmatch(commit):
            raise ValueError("no commit")
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{host()}: does not answer as a Hugging Face hub does; see HF_ENDPOINT"
        raise PacelineError(why) from error
    return commit, {file.name: file for file in files if file.size > 0}


def _remote(value: Any) -> RemoteFile:
    """Convert a RepoSibling with unvalidated contents. Raises ValueError, TypeError or KeyError."""
    size, digest = value.size or 0, value.lfs["sha256"] if value.lfs else value.blob_id
    is_hash = (_SHA256 if value.lfs else _COMMIT).fullmatch(digest) is not None
    if not is_hash or type(size) is not int or (size > MAX_SMALL_BYTES and not value.lfs):
        raise ValueError("no such hash or size")
    return RemoteFile(str(value.rfilename), size, digest)


def pull(reference: Reference, watch: ProgressCallback, *, offline: bool = False) -> list[LocalFile]:
    """Return all files of a model after downloading what is missing; partial downloads are resumed.
    watch: called after every chunk; its exceptions end the download.
    Raises UsageError, ModelError or PacelineError."""
    if offline or hub_cache.env_flag("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        return hub_cache.find_cached(reference)
    name = reference.name
    with _translate_hub_errors(name):
        commit, remotes = _listing(name)
        head = () if reference.tag else head_files(remotes)
        selected = [remotes[file] for file in head or select_variant(remotes, reference.tag, name)]
        files = [_get(name, commit, remote, watch) for remote in selected]
        # Offline programs look up the current revision here.
        ref = hub_cache.repo_folder(name) / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(ref) as part:
            part.write_text(commit)
    return files


def _get(name: str, commit: str, remote: RemoteFile, watch: ProgressCallback) -> LocalFile:
    folder = hub_cache.repo_folder(name)
    pointer, blob = folder / "snapshots" / commit / remote.name, folder / "blobs" / remote.digest
    blob_complete = hub_cache.is_blob(folder, blob, remote.size)
    if pointer.is_symlink():
        present = blob_complete and hub_cache.blob_of(folder, pointer) == blob
    else:
        present = pointer.is_file() and pointer.stat().st_size == remote.size
    if present:
        return LocalFile(pointer, remote.size, hub_cache.stated_sha256(pointer))
    received = 0 if blob_complete else _fetch(name, commit, remote, blob, watch)
    hub_cache.link(folder, pointer, blob, new=received > 0)
    stated = hub_cache.stated_sha256(blob)
    return LocalFile(pointer, remote.size, stated, received, hash_verified=received > 0)


def _digest(path: Path, remote: RemoteFile) -> str:
    """Return the hash of a file that the hub states of this one, too."""
    if _SHA256.fullmatch(remote.digest):
        return compute_sha256(path)
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _fetch(name: str, commit: str, remote: RemoteFile, blob: Path, watch: ProgressCallback) -> int:
    """Download a blob and verify its SHA-256. Return the bytes received."""
    from filelock import Timeout
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = hub_cache.repo_folder(name)
    lock = folder.parent / ".locks" / folder.name / f"{remote.digest}.lock"  # as huggingface_hub names it
    url = hf_hub_url(name, remote.name, revision=commit, endpoint=_endpoint())
    part = blob.with_name(f"{blob.name}.paceline.incomplete")
    lock.parent.mkdir(parents=True, exist_ok=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WeakFileLock(lock, timeout=BUSY):
            if hub_cache.is_blob(folder, blob, remote.size):
                return 0  # another process has finished it meanwhile
            have = part.stat().st_size if part.exists() else 0
            free = shutil.disk_usage(part.parent).free
            if remote.size - have > free:
                sizes = f"{format_bytes(remote.size)}, and {part.parent} {format_bytes(free)} free"
                raise PacelineError(f"{remote.name} has {sizes}: {MAKE_ROOM}")
            received = _fill(part, url, remote, watch)
            if have and _digest(part, remote) != remote.digest:
                part.unlink()  # the resumed part was damaged, as by a system crash
                received += _fill(part, url, remote, watch)
            if (actual := _digest(part, remote)) != remote.digest:
                part.unlink()
                why = f"the hub states the hash {remote.digest}, what came has {actual}: it was thrown away"
                raise ModelError(f"{remote.name}: {why}; try again, and do not trust it if this stays so")
            part.replace(blob)
            return received
    except Timeout as error:
        why = f"{remote.name}: is being downloaded by another process; wait for that"
        raise PacelineError(why) from error


class _DownloadFile:
    """A file for http_get that reports progress and refuses more bytes than the hub stated."""

    def __init__(self, file: BinaryIO, remote: RemoteFile, watch: ProgressCallback) -> None:
        self._file, self._remote, self._watch = file, remote, watch
        self.received = 0
        self.tell, self.seek, self.truncate = file.tell, file.seek, file.truncate

    def write(self, piece: bytes) -> int:
        if self._file.tell() + len(piece) > self._remote.size:
            why = f"more than the {self._remote.size:,} bytes come that were promised"
            raise PacelineError(f"{self._remote.name}: {why}; try again")
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
    from huggingface_hub.utils import build_hf_headers, tqdm

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
                headers=build_hf_headers(library_name="paceline"),
                expected_size=remote.size,
                displayed_filename=remote.name,
                tqdm_class=partial(tqdm, disable=True),  # `watch` reports the progress
            )
        except (httpx2.TransportError, ValueError, OSError) as error:
            is_local = isinstance(error, OSError) and error.errno is not None  # such as a full disk
            if is_local or isinstance(error, HfHubHTTPError):
                raise
            size = format_bytes(remote.size)
            why = f"the connection is lost ({_reason(error)}) after {format_bytes(file.tell())} of {size}: "
            why += "the same command goes on from there"
            if isinstance(error, ValueError):  # above 50 GB the hub gives files over Xet only
                why = f"has {size}, which plain HTTP does not give: choose a quantisation that is split, or "
                why += "get it with `hf download`"
            raise PacelineError(f"{remote.name}: {why}") from error
        os.fsync(file.fileno())  # the bytes must be on disk before the blob gets its name
    return growing.received


@contextmanager
def _translate_hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub, the connection and the disk into a UsageError or PacelineError."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except BrokenPipeError:  # the terminal of a progress bar
        raise
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        kind: type[PacelineError] = PacelineError
        match error:
            case errors.GatedRepoError():
                why = f"is gated: accept its terms at {_endpoint()}/{name}, then {LOG_IN}"
            case errors.RepositoryNotFoundError():  # the hub does not distinguish private from missing
                kind, why = UsageError, f"{host()} has none, or it is private: check the name, or {LOG_IN}"
            case errors.RemoteEntryNotFoundError() | errors.RevisionNotFoundError():
                why = f"was changed while it was downloaded, or {host()} is gone: try again"
            case errors.HfHubHTTPError(response=response) if response.status_code in (401, 403):
                why = f"{host()} does not let this token read it: {LOG_IN}"
            case errors.HfHubHTTPError(response=response):
                status = response.status_code
                later = "try again later" if status == 429 or status >= 500 else "see HF_ENDPOINT"
                why = f"{host()} answers with the error {status}; {later}"
            case OSError():
                place = error.filename or "the cache"
                why = f"cannot be written to {place} ({error.strerror or error}); {MAKE_ROOM}"
            case _:
                why = f"no connection to {host()} ({_reason(error)}); --offline uses what is on this machine"
        raise kind(f"{name}: {why}") from error


def _reason(error: Exception) -> str:
    """Return why a connection failed; the text may quote the server, so it is truncated."""
    return truncated(str(error), 200) or type(error).__name__
