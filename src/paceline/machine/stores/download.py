"""Models of the Hugging Face hub: found in its cache on this machine, and downloaded into it.

huggingface_hub asks, authenticates, knows the errors and lays out the cache, which other programs share. The
bytes are fetched here: since its version 1.18 it throws away what it has of a file when it is interrupted
(huggingface_hub#4196), which for 40 GB is a day's work on some lines. What is here of a file stays beside the
cache's blobs until it is complete and has the hash that the hub states; only then does it become a blob.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import ModelError, PacelineError, UsageError
from paceline.files.whole import whole
from paceline.machine.stores.places import hub_folder
from paceline.machine.stores.reference import Held, Reference, asked_for, pick, variants
from paceline.machine.stores.transfer import Partial, amount, fill

HOST = "https://huggingface.co"
LARGEST = 50 * 10**9  # bytes that the hub gives over plain HTTP
LOG_IN = "log in (HF_TOKEN, or `hf auth login`)"
BAD_TOKEN = "Invalid credentials"  # in the words of the hub
BUSY = 0.2  # seconds to wait for another process that downloads the same file

Watch = Callable[[str, int, int], None]  # a file's name, bytes of it that are here, bytes of all of it

_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # git's hash of a small file, the SHA-256 of a large one
_SHA256 = re.compile(r"(?:sha256[:-])?([0-9a-f]{64})")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Remote:
    """A file of a repository. blob: its name among the cache's blobs. sha256: empty where the hub states
    none, which is so for files of a few kB."""

    name: str
    size: int
    blob: str
    sha256: str


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HOST).rstrip("/")


def host() -> str:
    return endpoint().partition("://")[2] or endpoint()


def is_set(*names: str) -> bool:
    """Whether the first of these variables that is there says yes, by the rules of huggingface_hub."""
    said = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return said.upper() in ("1", "ON", "YES", "TRUE")


def cache_folder() -> Path:
    """Of now: huggingface_hub reads the environment only once."""
    return hub_folder(os.environ)


def repo_folder(name: str) -> Path:
    return cache_folder() / f"models--{name.replace('/', '--')}"


def in_cache(reference: Reference) -> list[Held]:
    """The files of a hub's model that are on this machine already: of the revision that was the current one
    when the hub was asked last, else of an older one. Raises UsageError where they are not."""
    partly = False
    for snapshot in _snapshots(repo_folder(reference.name)):
        files = (path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file())
        models = variants(files)
        found = asked_for(models, reference.tag) if reference.tag else models
        whole = [name for one in found if not one.missing for name in one.files]
        partly |= bool(found)
        if whole:
            return [_held(snapshot / name) for name in pick(whole, reference.tag, reference.name)]
    some = "not completely" if partly or _began(reference.name) else "not"
    raise UsageError(f"{reference} is {some} on this machine: paceline pull {reference}")


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


def stated_sha256(path: Path) -> str:
    """What a store says that a file's SHA-256 is: the hub's cache and Ollama call the files themselves by it.
    Empty for files of others."""
    found = _SHA256.fullmatch(path.resolve().name)
    return found[1] if found else ""


def pull(reference: Reference, watch: Watch, *, offline: bool = False) -> list[Held]:
    """All files of a hub's model, downloaded where they are not here yet; what an earlier call has left of
    them is used. watch is called often, and may raise. Raises UsageError, ModelError or PacelineError."""
    if offline or is_set("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        return in_cache(reference)
    name = reference.name
    with explained(name):
        commit, remotes = _listing(name)
        chosen = [remotes[file] for file in pick(remotes, reference.tag, name)]
        _require_room(repo_folder(name), chosen)
        held = [_get(name, commit, one, watch) for one in chosen]
    # Where programs that are offline look up what `main` is.
    ref = repo_folder(name) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    with whole(ref) as part:
        part.write_text(commit)
    return held


def _listing(name: str) -> tuple[str, dict[str, Remote]]:
    """The current revision, and its GGUF files."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # what there is to say is said here, in one line
    try:
        info = HfApi(endpoint=endpoint(), **_caller()).model_info(
            name, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        commit = str(info.sha)
        remotes = [
            Remote(
                one.rfilename,
                int(one.size),
                str(one.lfs.sha256 if one.lfs else one.blob_id),
                str(one.lfs.sha256) if one.lfs else "",
            )
            for one in info.siblings or ()
            if one.rfilename.lower().endswith(".gguf") and int(one.size or 0) > 0
        ]
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise PacelineError(
            f"{host()}: does not answer as a Hugging Face hub does; see HF_ENDPOINT"
        ) from error
    # They become names of files here.
    if not _COMMIT.fullmatch(commit) or not all(_BLOB.fullmatch(one.blob) for one in remotes):
        raise PacelineError(f"{host()}: does not answer as a Hugging Face hub does; see HF_ENDPOINT")
    return commit, {one.name: one for one in remotes}


def _caller() -> dict[str, str]:
    """What the hub is told of us."""
    from importlib.metadata import version

    return {"library_name": "paceline", "library_version": version("paceline")}


def _partial(folder: Path, remote: Remote) -> Path:
    return folder / "blobs" / f"{remote.blob}.paceline.incomplete"


def _require_room(folder: Path, chosen: Sequence[Remote]) -> None:
    """Said before hours of downloading, not after."""
    missing = [one for one in chosen if not (folder / "blobs" / one.blob).exists()]
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
    from huggingface_hub import hf_hub_download

    folder = repo_folder(name)
    pointer = folder / "snapshots" / commit / remote.name
    if pointer.exists():
        return _held(pointer)
    got, checked = 0, False
    if not (folder / "blobs" / remote.blob).exists():
        if remote.size <= LARGEST:
            got, checked = _fetch(name, commit, remote, watch)
        else:
            got = remote.size  # by huggingface_hub itself, over Xet
    # Where the blob is there, this only gives it its name among the snapshots.
    path = Path(
        hf_hub_download(name, remote.name, revision=commit, cache_dir=cache_folder(), endpoint=endpoint())
    )
    return Held(path, path.stat().st_size, remote.sha256, got, checked)


def _fetch(name: str, commit: str, remote: Remote, watch: Watch) -> tuple[int, bool]:
    """Make the cache's blob, complete; how many bytes came for it, and whether its hash was compared."""
    from filelock import Timeout
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

    folder = repo_folder(name)
    blob = folder / "blobs" / remote.blob
    lock = cache_folder() / ".locks" / folder.name / f"{remote.blob}.lock"  # huggingface_hub's own
    lock.parent.mkdir(parents=True, exist_ok=True)
    url = hf_hub_url(name, remote.name, revision=commit, endpoint=endpoint())
    headers = build_hf_headers(**_caller())

    def tick(done: int) -> None:
        watch(remote.name, done, remote.size)

    try:
        with WeakFileLock(lock, timeout=BUSY):
            if blob.exists():  # by now: another process had the lock, and is done
                return 0, False
            with Partial(_partial(folder, remote)) as partial:
                partial.read(tick)
                if partial.done > remote.size:
                    partial.clear()
                resumed = partial.done > 0
                fill(partial, url, headers, remote.size, tick)
                if resumed and remote.sha256 not in ("", partial.sha256):
                    partial.clear()  # what was there is damaged, as a crash of the system leaves it
                    fill(partial, url, headers, remote.size, tick)
                partial.settle()
            if remote.sha256 not in ("", partial.sha256):
                partial.path.unlink()
                raise ModelError(
                    f"{remote.name}: the hub states the SHA-256 {remote.sha256}, what came has "
                    f"{partial.sha256}: it was thrown away; try again, and do not trust it if this stays so"
                )
            partial.path.replace(blob)
            return partial.came, bool(remote.sha256)
    except Timeout as error:
        raise PacelineError(
            f"{remote.name}: is being downloaded by another process; wait for that"
        ) from error


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What huggingface_hub and its HTTP client raise, in a line that says what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise PacelineError(
            f"{name} is gated: accept its terms at {endpoint()}/{name}, then {LOG_IN}"
        ) from error
    except errors.EntryNotFoundError as error:
        raise PacelineError(
            f"{name} was changed while it was downloaded, or {host()} is gone: try again"
        ) from error
    except errors.HfHubHTTPError as error:
        status, why = error.response.status_code, error.response.headers.get("X-Error-Message", "")
        # What is private is not told from what is not there.
        if isinstance(error, errors.RepositoryNotFoundError) or (status == 401 and BAD_TOKEN not in why):
            raise UsageError(
                f"{host()} has no {name}, or it is private: see to its name, or {LOG_IN}"
            ) from error
        raise PacelineError(f"{name}: {_refusal(status)}") from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(f"{name}: HF_HUB_OFFLINE is set; unset it to download") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        why = str(error) or type(error).__name__
        raise PacelineError(
            f"no connection to {host()} ({why}); --offline uses what is on this machine already"
        ) from error


def _refusal(status: int) -> str:
    if status == 401:
        return f"{host()} does not accept the token: renew it (HF_TOKEN, or `hf auth login`)"
    if status == 403:
        return f"{host()} does not let this token read it: use another one (HF_TOKEN)"
    if status == 429:
        return f"{host()} has had too many requests: wait a few minutes, or log in (HF_TOKEN)"
    later = "try again later" if status >= 500 else "see HF_ENDPOINT"
    return f"{host()} answers with the error {status}; {later}"
