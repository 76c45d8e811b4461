"""Resolve model references to files on this machine. Nothing is downloaded here."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from paceline.models import zoo
from paceline.models.names import HF, is_toy, is_transformers, is_view
from paceline.models.stores.reference import HEAD_CONFIG, HUB, OLLAMA, PATH, ZOO, LocalFile, Reference, parse
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.validation import did_you_mean
from paceline.system.home import expand_user, sha256_of, to_stderr


def file_of(text: str | os.PathLike[str]) -> Path:
    """Return the file to load, the first of several; toy models and views keep their names.
    hf:NAME is a model's folder, also in the hub's cache, or hf:FILE for a GGUF file.
    Raises UsageError for a name that is not on this machine. A path need not exist."""
    from paceline.models.stores.hub_cache import folder_in_cache

    if not isinstance(text, str) or is_toy(text) or is_view(text):
        return Path(text)
    name = text if os.path.exists(text) else text.removeprefix(HF)  # noqa: PTH110
    reference = parse(name)
    if name != text and reference.kind == HUB and not reference.tag:
        return folder_in_cache(reference)
    path = path_of(reference) if reference.kind == PATH else model_of(local_files(name, reference))
    return path if name == text or is_transformers(path) else Path(f"{HF}{path}")


def model_of(files: list[LocalFile]) -> Path:
    """Return what is loaded of a model's files: the first one, or a draft head's folder."""
    first = files[0].path
    return first.parent if first.name == HEAD_CONFIG else first


def default_name(target: str) -> str:
    """Return a server's model name: smollm2 for zoo:smollm2, the file's stem for a path."""
    if target.startswith("zoo:"):
        return target.removeprefix("zoo:")
    path = Path(target)
    return path.stem if path.suffix == ".gguf" else target


def local_files(text: str, reference: Reference) -> list[LocalFile]:
    """Return the local files of a reference parsed from `text`.
    Raises UsageError with similar names if there are none, ModelError if a file of the zoo is damaged."""
    from paceline.models.stores.hub_cache import find_cached
    from paceline.models.stores.inventory import installed_names
    from paceline.models.stores.ollama_store import find_ollama_model

    try:
        if reference.kind == OLLAMA:
            model = find_ollama_model(reference)
            if model.note:
                to_stderr(f"{text}: {model.note}")
            return [model]
        if reference.kind == ZOO:
            return [_zoo_file(reference.name)]
        if reference.kind == HUB:
            return find_cached(reference)
    except UsageError as error:
        # USER/REPO may have been meant as a path.
        path = f"{text}: no such file, and " if (HUB, text) == (reference.kind, reference.name) else ""
        raise UsageError(f"{path}{error}{did_you_mean(str(reference), installed_names())}") from error
    file = path_of(reference)
    if not file.is_file():
        raise UsageError(f"{file}: is no file; name one, or a model to download")
    return [LocalFile(file, file.stat().st_size)]


def path_of(reference: Reference) -> Path:
    # A shell does not expand the ~ of --model=~/file.
    path = Path(reference.name)
    return expand_user(path) if reference.name.startswith("~") and not path.exists() else path


def _zoo_file(name: str) -> LocalFile:
    """Return a file of the zoo. A file from a Python package is verified by its SHA-256, which is cached."""
    path, wheel = zoo.path(name), zoo.row(name).wheel
    size = path.stat().st_size
    if wheel is None:
        return LocalFile(path, size)
    found = ""
    with suppress(OSError):
        found = sha256_of(path)
    if found != wheel.sha256:
        remedy = wheel.pip_command(zoo.REINSTALL)
        raise ModelError(f"{path}: is damaged, or another version (by its SHA-256): {remedy}")
    return LocalFile(path, size, found, hash_verified=True)
