"""Resolution of model names on the command line; --verbose prints the resolved files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import output
from paceline.cli.output import print_detail, remember_name
from paceline.speculative.errors import ModelError

if TYPE_CHECKING:
    from paceline.models.stores.reference import LocalFile
    from paceline.settings import LoadOptions, PathLike


def resolve_models(options: LoadOptions) -> LoadOptions:
    """Return the options with files in place of names; paths stay as they are. Raises UsageError."""
    return replace(options, target=_file(options.target), draft=_file(options.draft))


def _file(name: PathLike | None) -> PathLike | None:
    path = None if name is None else resolved(str(name))
    # Path drops a leading ./, and user/repo without it is a name.
    return name if name is None or path == Path(name) else path


def file_option(given: Path | None) -> Path | None:
    """Return the file of a model's name, as a callback of typer."""
    return None if given is None else resolved(given.as_posix())


def resolved(text: str) -> Path:
    """Return the first file of a model; --verbose prints it. Raises UsageError if it is not here."""
    from paceline.models.resolve import file_of, local_files
    from paceline.models.stores.reference import parse

    path = file_of(text)
    if path == Path(text):
        return path
    about = ""
    if output.verbose and path.is_file():
        files = local_files(text, parse(text))
        what, value = hash_of(files[0])
        parts = f", the first of {len(files)} parts" if len(files) > 1 else ""
        about = f" ({what} {value[:16]}{parts})"
    print_detail(f"{text} is {path}{about}")
    if path.is_absolute():
        remember_name(str(path), text)
    return path


def hash_of(file: LocalFile) -> tuple[str, str]:
    """Return the SHA-256 if the store states it, else the fingerprint, each after its name."""
    from paceline.system.home import file_fingerprint

    return ("sha256", file.sha256) if file.sha256 else ("fingerprint", file_fingerprint(file.path))


def base_model(name: str) -> ModelError:
    plain = "paceline run with a plain prompt, without --chat, --system and --messages"
    return ModelError(f"{name}: is a base model, without a chat template: use an instruct model, or {plain}")
