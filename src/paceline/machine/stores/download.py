"""Models of the Hugging Face hub: found in its cache on this machine, and downloaded into it.

huggingface_hub authenticates, and its cache is shared with other programs. The bytes are fetched here: since
its version 1.18 it throws away what it has of a file when it is interrupted (huggingface_hub#4196), which for
40 GB is a day's work on some lines. What is here of a file stays beside the cache's blobs until it is
complete and has the hash that the hub states; only then does it become a blob.

Files get their names here, too: huggingface_hub takes the names of blob and snapshot from the headers of an
answer as they are, which lets a server write wherever the user may.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.core.errors import ModelError, PacelineError, UsageError
from paceline.core.printable import amount, printable
from paceline.machine.stores.hub_api import Remote, endpoint, explained, headers, host, listing, reason
from paceline.machine.stores.hub_http import headers_of
from paceline.machine.stores.hub_layout import (
    blob_of,
    cache_folder,
    is_blob,
    is_own,
    is_set,
    link,
    repo_folder,
    stated_sha256,
)
from paceline.machine.stores.reference import Held, Reference, asked_for, pick, variants
from paceline.machine.stores.transfer import Partial, fill
from paceline.system.whole import whole

LARGEST = 50 * 10**9  # bytes that the hub gives over plain HTTP
BUSY = 0.2  # seconds to wait for another process that downloads the same file

Watch = Callable[[str, int, int], None]  # a file's name, bytes of it that are here, bytes of all of it


def in_cache(reference: Reference) -> list[Held]:
    """The files of a hub's model that are on this machine already: of the revision that was the current one
    when the hub was asked last, else of an older one. Raises UsageError where they are not."""
    partly = False
    folder = repo_folder(reference.name)
    for snapshot in _snapshots(folder):
        own = (path for path in snapshot.rglob("*") if is_own(folder, path))
        models = variants(path.relative_to(snapshot).as_posix() for path in own)
        found = asked_for(models, reference.tag) if reference.tag else models
        whole = [name for one in found if not one.missing for name in one.files]
        partly |= bool(found)
        if whole:
            return [_held(snapshot / name) for name in pick(whole, reference.tag, reference.name)]
    some = "not completely" if partly or _began(reference.name) else "not"
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
    """The current one first, then the newest."""
    try:
        current = (folder / "refs" / "main").read_text(errors="replace").strip()
    except OSError:
        current = ""
    try:
        found = [path for path in (folder / "snapshots").iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    return sorted(found, key=lambda path: (path.name == current, path.stat().st_mtime), reverse=True)


def _began(name: str) -> bool:
    return next((repo_folder(name) / "blobs").glob("*.incomplete"), None) is not None


def _held(path: Path) -> Held:
    return Held(path, path.stat().st_size, stated_sha256(path))


def pull(reference: Reference, watch: Watch, *, offline: bool = False) -> list[Held]:
    """All files of a hub's model, downloaded where they are not here yet; what an earlier call has left of
    them is used. watch is called often, and may raise. Raises UsageError, ModelError or PacelineError."""
    if offline or is_set("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        return in_cache(reference)
    name = reference.name
    with explained(name):
        commit, remotes = listing(name)
        chosen = [remotes[file] for file in pick(remotes, reference.tag, name)]
        _require_room(repo_folder(name), commit, chosen)
        held = [_get(name, commit, one, watch) for one in chosen]
    # Where programs that are offline look up what `main` is.
    ref = repo_folder(name) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    with whole(ref) as part:
        part.write_text(commit)
    return held


def _pointer(folder: Path, commit: str, remote: Remote) -> Path:
    return folder / "snapshots" / commit / remote.name


def _blob(folder: Path, remote: Remote) -> Path:
    return folder / "blobs" / remote.blob


def _partial(folder: Path, remote: Remote) -> Path:
    return folder / "blobs" / f"{remote.blob}.paceline.incomplete"


def _is_here(folder: Path, pointer: Path, remote: Remote) -> bool:
    """Whether a name in a snapshot is that of this very file, as far as its size and its blob's name tell."""
    if pointer.is_symlink():
        return blob_of(folder, pointer) == _blob(folder, remote) and is_blob(
            folder, _blob(folder, remote), remote.size
        )
    return pointer.is_file() and pointer.stat().st_size == remote.size


def _require_room(folder: Path, commit: str, chosen: Sequence[Remote]) -> None:
    """Said before hours of downloading, not after."""
    missing = [
        one
        for one in chosen
        if not _is_here(folder, _pointer(folder, commit, one), one)
        and not is_blob(folder, _blob(folder, one), one.size)
    ]
    here = [path.stat().st_size for one in missing if (path := _partial(folder, one)).exists()]
    needed = sum(one.size for one in missing) - sum(here)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise PacelineError(
            f"{amount(needed)} are to be downloaded, and {there} has {amount(free)} free: make room, or name "
            "another folder with HF_HUB_CACHE"
        )


def _get(name: str, commit: str, remote: Remote, watch: Watch) -> Held:
    folder = repo_folder(name)
    pointer, blob = _pointer(folder, commit, remote), _blob(folder, remote)
    if _is_here(folder, pointer, remote):
        return Held(pointer, remote.size, stated_sha256(pointer))
    got, checked = 0, False
    if not is_blob(folder, blob, remote.size):
        got, checked = _fetch(name, commit, remote, watch)
    link(folder, pointer, blob, new=got > 0)
    return Held(pointer, remote.size, remote.sha256, got, checked)


def _fetch(name: str, commit: str, remote: Remote, watch: Watch) -> tuple[int, bool]:
    """Make the cache's blob, complete; how many bytes came for it, and whether its SHA-256 was compared."""
    from filelock import Timeout
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    folder = repo_folder(name)
    lock = cache_folder() / ".locks" / folder.name / f"{remote.blob}.lock"  # huggingface_hub's own
    lock.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(name, remote.name, revision=commit, endpoint=endpoint())

    def tick(done: int) -> None:
        watch(remote.name, done, remote.size)

    try:
        with WeakFileLock(lock, timeout=BUSY):
            if is_blob(folder, _blob(folder, remote), remote.size):
                return 0, False  # by now: another process had the lock, and is done
            came = (_over_http if remote.size <= LARGEST else _over_xet)(
                _partial(folder, remote), url, remote, tick
            )
            _partial(folder, remote).replace(_blob(folder, remote))
            return came, bool(remote.sha256)
    except Timeout as error:
        raise PacelineError(
            f"{remote.name}: is being downloaded by another process; wait for that"
        ) from error


def _over_http(path: Path, url: str, remote: Remote, tick: Callable[[int], None]) -> int:
    """Bytes that came for a file, which is complete at `path` then, and has its hash."""
    told = headers()
    with Partial(path, remote.hashing) as partial:
        partial.read(tick)
        if partial.done > remote.size:
            partial.clear()
        resumed = partial.done > 0
        fill(partial, url, told, remote.size, tick)
        if resumed and partial.hash != remote.blob:
            partial.clear()  # what was there is damaged, as a crash of the system leaves it
            fill(partial, url, told, remote.size, tick)
        partial.settle()
    _require_hash(partial, remote)
    return partial.came


def _over_xet(path: Path, url: str, remote: Remote, tick: Callable[[int], None]) -> int:
    """The same by huggingface_hub's own client, which starts anew each time."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import xet_get
    from huggingface_hub.utils import parse_xet_file_data_from_response

    told = headers()
    answer = headers_of(url, told, constants.HF_HUB_ETAG_TIMEOUT)
    if (data := parse_xet_file_data_from_response(answer, endpoint())) is None:
        raise PacelineError(
            f"{remote.name}: has more than {amount(LARGEST)}, which plain HTTP does not give, and {host()} "
            "does not have it in Xet: choose another quantisation, or one that is split"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        xet_get(
            incomplete_path=path,
            xet_file_data=data,
            headers=told,
            expected_size=remote.size,
            displayed_filename=printable(remote.name),
        )
    except (ValueError, RuntimeError) as error:  # hf_xet's own; ValueError where it is not installed
        raise PacelineError(f"{remote.name}: did not come over Xet ({reason(error)}); try again") from error
    with Partial(path, remote.hashing) as partial:
        partial.read(tick)
        partial.settle()
    _require_hash(partial, remote)
    return partial.done


def _require_hash(partial: Partial, remote: Remote) -> None:
    if partial.hash != remote.blob:
        partial.path.unlink()
        kind = "SHA-256" if remote.sha256 else "hash"
        raise ModelError(
            f"{remote.name}: the hub states the {kind} {remote.blob}, what came has "
            f"{partial.hash}: it was thrown away; try again, and do not trust it if this stays so"
        )
