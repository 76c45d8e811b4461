"""The Hugging Face hub, or the server that HF_ENDPOINT names: what it has of a model, and why it says no.

Commit, files' names and hashes become names of files here: they come from the listing alone, and are checked
before any is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import PacelineError, UsageError
from paceline.core.printable import shortened
from paceline.machine.deadline import OverdueError
from paceline.machine.stores.hub_http import LONGEST, RefusedError, asked, body
from paceline.machine.strict_json import loads

HOST = "https://huggingface.co"
LOG_IN = "log in (HF_TOKEN, or `hf auth login`)"
BAD_TOKEN = "Invalid credentials"  # in the words of the hub
MOST = 1 << 50  # bytes of a file

_COMMIT = _SHA1 = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Remote:
    """A file of a repository. blob: its hash, and its name among the cache's blobs: the SHA-256 of a large
    file, git's own hash of one of a few kB."""

    name: str
    size: int
    blob: str

    @property
    def sha256(self) -> str:
        """Empty where the hub states none."""
        return self.blob if _SHA256.fullmatch(self.blob) else ""

    @property
    def hashing(self) -> Callable[[], Any]:
        """Makes a new hash that all bytes of the file bring to `blob`."""
        if self.sha256:
            return hashlib.sha256
        return lambda: hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HOST).rstrip("/")


def host() -> str:
    return endpoint().partition("://")[2] or endpoint()


def headers() -> dict[str, str]:
    """What the hub is told of us, the token included."""
    from importlib.metadata import version

    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(library_name="paceline", library_version=version("paceline")))


def listing(name: str) -> tuple[str, dict[str, Remote]]:
    """The current revision of a repository, and its GGUF files."""
    from huggingface_hub import constants

    url = f"{endpoint()}/api/models/{name}?blobs=true"
    with asked(url, headers(), constants.HF_HUB_ETAG_TIMEOUT, LONGEST) as stream:
        said = body(stream, host())
    try:
        info = loads(said)
        if not _COMMIT.fullmatch(info["sha"]):
            raise ValueError("no commit")
        files = [_remote(one) for one in info["siblings"] or () if one["rfilename"].lower().endswith(".gguf")]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PacelineError(
            f"{host()}: does not answer as a Hugging Face hub does; see HF_ENDPOINT"
        ) from error
    return info["sha"], {one.name: one for one in files if one.size > 0}


def _remote(said: Mapping[str, Any]) -> Remote:
    """Raises ValueError, TypeError, KeyError or AttributeError for what is no entry of a hub's."""
    lfs, size = said.get("lfs"), said.get("size") or 0
    blob = lfs["sha256"] if lfs else said["blobId"]
    if not (_SHA256 if lfs else _SHA1).fullmatch(blob) or type(size) is not int or size > MOST:
        raise ValueError("no such hash or size")
    return Remote(str(said["rfilename"]), size, blob)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What is raised while the hub is asked, in a line that says what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except RefusedError as error:
        raise _refusal(name, error) from error
    except errors.HfHubHTTPError as error:
        raise _refusal(name, RefusedError(error.response.status_code, error.response.headers)) from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(f"{name}: HF_HUB_OFFLINE is set; unset it to download") from error
    except OverdueError as error:
        raise PacelineError(f"{host()} {error}; try again later, or see HF_ENDPOINT") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise PacelineError(
            f"no connection to {host()} ({reason(error)}); --offline uses what is on this machine already"
        ) from error


def reason(error: Exception) -> str:
    """Why a connection failed, which may quote what the server sent."""
    return shortened(str(error), 200) or type(error).__name__


def _refusal(name: str, refused: RefusedError) -> PacelineError:
    status = refused.status
    if refused.code == "GatedRepo":
        return PacelineError(f"{name} is gated: accept its terms at {endpoint()}/{name}, then {LOG_IN}")
    if refused.code in ("EntryNotFound", "RevisionNotFound"):
        return PacelineError(f"{name} was changed while it was downloaded, or {host()} is gone: try again")
    # What is private is not told from what is not there.
    if refused.code == "RepoNotFound" or (status == 401 and BAD_TOKEN not in refused.why):
        return UsageError(f"{host()} has no {name}, or it is private: see to its name, or {LOG_IN}")
    return PacelineError(f"{name}: {_meaning(status)}")


def _meaning(status: int) -> str:
    if status == 401:
        return f"{host()} does not accept the token: renew it (HF_TOKEN, or `hf auth login`)"
    if status == 403:
        return f"{host()} does not let this token read it: use another one (HF_TOKEN)"
    if status == 429:
        return f"{host()} has had too many requests: wait a few minutes, or log in (HF_TOKEN)"
    later = "try again later" if status >= 500 else "see HF_ENDPOINT"
    return f"{host()} answers with the error {status}; {later}"
