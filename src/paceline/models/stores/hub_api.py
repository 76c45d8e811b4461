"""Repository listings of the Hugging Face hub (or of HF_ENDPOINT), and its errors in plain words.

Commit and hashes become local file names: they come from the listing alone, and are validated before use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paceline.models.stores.reference import head_files
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.printable import truncated

HOST = "https://huggingface.co"
LOG_IN = "log in (HF_TOKEN, or `hf auth login`)"
HUB_TIMEOUT_SECONDS = 30.0
MAX_SMALL_BYTES = 16 << 20  # of a file that git itself has

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository. digest: the SHA-256 of a large file, git's hash of a small one; also the name
    of its blob in the cache."""

    name: str
    size: int
    digest: str


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or HOST).rstrip("/")


def host() -> str:
    return endpoint().partition("://")[2] or endpoint()


def headers() -> dict[str, str]:
    """Return the HTTP headers of a request, the token included."""
    from importlib.metadata import version

    from huggingface_hub.utils import build_hf_headers

    return dict(build_hf_headers(library_name="paceline", library_version=version("paceline")))


def listing(name: str) -> tuple[str, dict[str, RemoteFile]]:
    """Return the current revision of a repository, and its GGUF files by name, or a draft head's files.
    Raises PacelineError."""
    try:
        from huggingface_hub import HfApi  # parses HF_ENDPOINT

        info = HfApi(endpoint(), headers=headers()).model_info(
            name, files_metadata=True, timeout=HUB_TIMEOUT_SECONDS
        )
        commit = str(info.sha)
        if not _COMMIT.fullmatch(commit):
            raise ValueError("no commit")
        siblings = {str(sibling.rfilename): sibling for sibling in info.siblings or ()}
        ggufs = (sibling for name, sibling in siblings.items() if name.lower().endswith(".gguf"))
        files = [_remote(gguf) for gguf in ggufs if gguf.lfs]  # small files without LFS are no models
        files += [_remote(siblings[name]) for name in head_files(siblings)]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise PacelineError(
            f"{host()}: does not answer as a Hugging Face hub does; see HF_ENDPOINT"
        ) from error
    return commit, {file.name: file for file in files if file.size > 0}


def _remote(value: Any) -> RemoteFile:
    """Convert a RepoSibling with unvalidated contents. Raises ValueError, TypeError or KeyError."""
    size, digest = value.size or 0, value.lfs["sha256"] if value.lfs else value.blob_id
    if not (_SHA256 if value.lfs else _COMMIT).fullmatch(digest) or type(size) is not int:
        raise ValueError("no such hash or size")
    if not value.lfs and size > MAX_SMALL_BYTES:
        raise ValueError("a large file without LFS")
    return RemoteFile(str(value.rfilename), size, digest)


@contextmanager
def translate_hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub, the connection and the disk into a UsageError or PacelineError of one line."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise PacelineError(
            f"{name} is gated: accept its terms at {endpoint()}/{name}, then {LOG_IN}"
        ) from error
    except errors.RepositoryNotFoundError as error:  # the hub does not distinguish private from missing
        raise UsageError(f"{host()} has no {name}, or it is private: see to its name, or {LOG_IN}") from error
    except (errors.RemoteEntryNotFoundError, errors.RevisionNotFoundError) as error:
        raise PacelineError(
            f"{name} was changed while it was downloaded, or {host()} is gone: try again"
        ) from error
    except errors.HfHubHTTPError as error:
        raise PacelineError(f"{name}: {_meaning(error.response.status_code)}") from error
    except errors.OfflineModeIsEnabled as error:
        raise UsageError(f"{name}: HF_HUB_OFFLINE is set; unset it to download") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise PacelineError(
            f"no connection to {host()} ({reason(error)}); --offline uses what is on this machine already"
        ) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # the terminal of a progress bar
            raise
        raise PacelineError(
            f"{name}: cannot be written to {error.filename or 'the cache'} ({error.strerror or error}); make "
            "room there, or name another folder with HF_HUB_CACHE"
        ) from error


def reason(error: Exception) -> str:
    """Return why a connection failed; the text may quote the server, so it is truncated."""
    return truncated(str(error), 200) or type(error).__name__


def _meaning(status: int) -> str:
    if status in (401, 403):
        return f"{host()} does not let this token read it: {LOG_IN}"
    later = "try again later" if status == 429 or status >= 500 else "see HF_ENDPOINT"
    return f"{host()} answers with the error {status}; {later}"
