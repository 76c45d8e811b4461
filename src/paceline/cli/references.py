"""Names of models on the command line: which file is meant, said before it is used. Nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.machine.stores.reference import Held, Reference


def model_option(given: str | None) -> str | None:
    """For typer to call with an option's value: the file that a name stands for; a path as it was given."""
    return None if given is None else str(resolved(given))


def file_option(given: Path | None) -> Path | None:
    """The same for options that are paths."""
    return None if given is None else resolved(str(given))


def resolved(text: str) -> Path:
    """The file to load, of several the first. Where a name was given instead of a path, stderr is told what
    it stands for. Raises UsageError where that is not on this machine."""
    from paceline.machine.stores.reference import PATH, parse

    reference = parse(text)
    if reference.kind == PATH:
        return _path(reference.name)
    try:
        first = held(reference)[0]
    except UsageError as error:
        if text != reference.name:
            raise
        # USER/REPO may well have been meant as a path.
        raise UsageError(f"{text}: no such file, and {error}") from error
    what, value = hash_of(first)
    print(printable(f"{text} is {first.path} ({what} {value[:16]})"), file=sys.stderr)
    return first.path


def held(reference: Reference) -> list[Held]:
    """The files on this machine that it stands for. Raises UsageError where there are none."""
    from paceline.machine.stores.download import in_cache
    from paceline.machine.stores.ollama_model import in_ollama
    from paceline.machine.stores.reference import HUB, OLLAMA, ZOO, Held

    if reference.kind == OLLAMA:
        return [in_ollama(reference)]
    if reference.kind == HUB:
        return in_cache(reference)
    path = _path(reference.name) if reference.kind != ZOO else _embedded(reference.name)
    if not path.is_file():
        raise UsageError(f"{path}: is no file; name one, or a model to download")
    return [Held(path, path.stat().st_size)]


def hash_of(one: Held) -> tuple[str, str]:
    """What tells this file from others: the SHA-256 of all of it where its store states it, else the
    fingerprint that is recorded with every measurement."""
    from paceline.machine.identity import fingerprint

    return ("sha256", one.sha256) if one.sha256 else ("fingerprint", fingerprint(one.path))


def printable(text: str) -> str:
    """Without what a name could tell a terminal to do."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _path(text: str) -> Path:
    # A shell leaves the ~ of --model=~/file alone.
    path = Path(text)
    return path.expanduser() if text.startswith("~") and not path.exists() else path


def _embedded(name: str) -> Path:
    from paceline import zoo

    return {"target": zoo.target_path, "draft": zoo.draft_path}[name]()
