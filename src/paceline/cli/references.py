"""Names of models on the command line: which file is meant, said before it is used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.output import print_note
from paceline.speculative.errors import ModelError

if TYPE_CHECKING:
    from paceline.models.stores.reference import LocalFile


def resolve_models(models: dict[str, Any]) -> dict[str, Any]:
    """Return the models' settings with files in place of names; a path stays as it was given."""
    named = {role: models[role] for role in ("target", "draft") if models.get(role) is not None}
    paths = {role: resolved(name) for role, name in named.items()}
    # A Path has no ./ before it, and user/repo without one is a name.
    return models | {
        role: named[role] if path == Path(named[role]) else str(path) for role, path in paths.items()
    }


def file_option(given: Path | None) -> Path | None:
    """Return the file that an option's name stands for: for typer to call."""
    return None if given is None else resolved(given.as_posix())


def resolved(text: str) -> Path:
    """Return the file to load, of several the first. stderr is told what a name stands for. Raises UsageError
    where that is not on this machine."""
    from paceline.models.names import HF, is_toy, is_view
    from paceline.models.resolve import file_of, local_files, path_of
    from paceline.models.stores.reference import PATH, parse

    if is_toy(text) or is_view(text):
        return Path(text)
    if text.startswith(HF):
        place = file_of(text)
        if str(place) != text:
            print_note(f"{text} is {place}")
        return place
    reference = parse(text)
    if reference.kind == PATH:
        return path_of(reference)
    found = local_files(text, reference)
    first = found[0]
    what, value = hash_of(first)
    parts = f", the first of {len(found)} parts" if len(found) > 1 else ""
    print_note(f"{text} is {first.path} ({what} {value[:16]}{parts})")
    return first.path


def hash_of(one: LocalFile) -> tuple[str, str]:
    """Return the SHA-256 where its store states it, else the fingerprint that measurements record."""
    from paceline.system.identity import file_fingerprint

    return ("sha256", one.sha256) if one.sha256 else ("fingerprint", file_fingerprint(one.path))


def require_template(target: str) -> None:
    """Raise ModelError where a file's header says that the model has no chat template, before it is loaded
    and measured. For what is no file, and for a header that cannot be read, loading tells."""
    from paceline.doctor.gathering import read_header
    from paceline.models.names import model_path

    facts = read_header(Path(target), []) if model_path(Path(target)).is_file() else None
    if facts is not None and facts.chat_template is None:
        raise base_model(target)


def base_model(name: str) -> ModelError:
    return ModelError(
        f"{name}: is a base model, without a chat template: use an instruct model, or paceline run with a "
        "plain prompt, without --chat, --system and --messages"
    )
