"""What a model is called, and the file that is meant: a path, or a name in somebody's store. Nothing is
downloaded here."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.models import zoo
from paceline.models.names import HF, is_toy, is_transformers, is_view
from paceline.models.stores.reference import HUB, OLLAMA, PATH, ZOO, LocalFile, Reference, parse
from paceline.speculative.errors import ModelError, UsageError
from paceline.system.home import expand_user
from paceline.system.identity import sha256_of


def file_of(text: str | os.PathLike[str]) -> Path:
    """The file to load, of several the first; the toy model and views, which have none, keep their names.
    Raises UsageError where a name stands for nothing that is on this machine; a path is left to whoever opens
    it."""
    if not isinstance(text, str) or is_toy(text) or is_view(text):
        return Path(text)
    if text.startswith(HF) and not os.path.exists(text):  # noqa: PTH110
        return for_transformers(text)
    reference = parse(text)
    return path_of(reference) if reference.kind == PATH else local_files(text, reference)[0].path


def default_name(target: str) -> str:
    """What a server calls it: smollm2 for zoo:smollm2, the file's stem for a path."""
    if target.startswith("zoo:"):
        return target.removeprefix("zoo:")
    path = Path(target)
    return path.stem if path.suffix == ".gguf" else target


def for_transformers(text: str) -> Path:
    """What hf:NAME means: the folder of a model, of the hub's cache too; or still with the prefix, since
    another engine would open it, a GGUF file. Raises UsageError where it is not on this machine."""
    from paceline.models.stores.download import folder_in_cache

    name = text.removeprefix(HF)
    reference = parse(name)
    if reference.kind == HUB and not reference.tag:
        return folder_in_cache(reference)
    path = path_of(reference) if reference.kind == PATH else local_files(name, reference)[0].path
    return path if is_transformers(path) else Path(f"{HF}{path}")


def local_files(text: str, reference: Reference) -> list[LocalFile]:
    """The files on this machine that it stands for, as `text` called it. Raises UsageError where there are
    none, and ModelError where one is not what it should be."""
    try:
        return _found(reference)
    except UsageError as error:
        if reference.kind != HUB or text != reference.name:
            raise
        # USER/REPO may well have been meant as a path.
        raise UsageError(f"{text}: no such file, and {error}") from error


def path_of(reference: Reference) -> Path:
    # A shell leaves the ~ of --model=~/file alone.
    path = Path(reference.name)
    return expand_user(path) if reference.name.startswith("~") and not path.exists() else path


def _found(reference: Reference) -> list[LocalFile]:
    from paceline.models.stores.download import find_cached
    from paceline.models.stores.ollama_store import find_ollama_model

    if reference.kind == OLLAMA:
        return [find_ollama_model(reference)]
    if reference.kind == HUB:
        return find_cached(reference)
    if reference.kind == ZOO:
        return [_of_zoo(reference.name)]
    path = path_of(reference)
    if not path.is_file():
        raise UsageError(f"{path}: is no file; name one, or a model to download")
    return [LocalFile(path, path.stat().st_size)]


def _of_zoo(name: str) -> LocalFile:
    """A file that others packed is checked: once for as long as it stays unchanged."""
    path, wheel = zoo.path(name), zoo.row(name).wheel
    size = path.stat().st_size
    if wheel is None:
        return LocalFile(path, size)
    if size != wheel.size:
        raise ModelError(
            f"{path}: is damaged, or another version ({size:,} bytes, not {wheel.size:,}): {wheel.reinstall}"
        )
    try:
        found = sha256_of(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    if found != wheel.sha256:
        raise ModelError(f"{path}: is damaged, or another version (by its SHA-256): {wheel.reinstall}")
    return LocalFile(path, size, found, hash_verified=True)
