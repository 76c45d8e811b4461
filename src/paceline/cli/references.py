"""Names of models on the command line: which file is meant, said before it is used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.printable import printable

if TYPE_CHECKING:
    from paceline.machine.stores.reference import Held


def model_option(given: str | None) -> str | None:
    """For typer to call with an option's value: the file that a name stands for; a path as it was given."""
    if given is None:
        return None
    path = resolved(given)
    # A Path has no ./ before it, and user/repo without one is a name.
    return given if path == Path(given) else str(path)


def file_option(given: Path | None) -> Path | None:
    """The same for options that are paths."""
    return None if given is None else resolved(given.as_posix())


def resolved(text: str) -> Path:
    """The file to load, of several the first. Where a name was given instead of a path, stderr is told what
    it stands for. Raises UsageError where that is not on this machine."""
    from paceline.engines.openers import HF, is_toy
    from paceline.engines.views import is_view
    from paceline.machine.stores.reference import PATH, parse
    from paceline.naming import file_of, held, path_of

    if is_toy(text) or is_view(text):
        return Path(text)
    if text.startswith(HF):
        place = file_of(text)
        if str(place) != text:
            print(printable(f"{text} is {place}"), file=sys.stderr)
        return place
    reference = parse(text)
    if reference.kind == PATH:
        return path_of(reference)
    found = held(text, reference)
    first = found[0]
    what, value = hash_of(first)
    parts = f", the first of {len(found)} parts" if len(found) > 1 else ""
    print(printable(f"{text} is {first.path} ({what} {value[:16]}{parts})"), file=sys.stderr)
    return first.path


def hash_of(one: Held) -> tuple[str, str]:
    """What tells this file from others: the SHA-256 of all of it where its store states it, else the
    fingerprint that is recorded with every measurement."""
    from paceline.machine.identity import fingerprint

    return ("sha256", one.sha256) if one.sha256 else ("fingerprint", fingerprint(one.path))


def is_base(target: str) -> bool:
    """Whether a file's header tells that the model has no chat template, before it is loaded and measured. Of
    what is no file, and of a header that cannot be read, whoever loads it tells."""
    from paceline.engines.openers import place_of
    from paceline.lab.gathering import header

    facts = header(Path(target), []) if place_of(Path(target)).is_file() else None
    return facts is not None and facts.chat_template is None
