"""Models in the Hugging Face cache, where llama.cpp keeps its downloads as well (common/hf-cache.cpp)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.models.stores import reference
from paceline.models.stores.hub_layout import current_revision, is_repository_file
from paceline.models.stores.places import HUB
from paceline.models.stores.reference import Reference, matching_variants, parse, variants
from paceline.models.stores.search import FolderSearch, ModelCandidate, walk
from paceline.speculative.errors import UsageError

REPOSITORY = "models--"  # prefix of a repository's folder


def candidates(folder: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    """Yield the models of one repository."""
    partial = search.folder(folder / "blobs", (".incomplete",))
    if unfinished := sum(not entry.folder for entry in partial):
        search.add_note(folder, f"{unfinished} of its files are being downloaded, or were left half-way")
    main = current_revision(folder)
    for snapshot in search.folder(folder / "snapshots"):
        if snapshot.folder:
            repository = folder.name.removeprefix(REPOSITORY).replace("--", "/")
            names = _names(repository, folder, snapshot.path) if snapshot.path.name == main else {}
            for path in walk(snapshot.path, search):
                yield ModelCandidate(path, names.get(path, str(path)), HUB)


def _names(repository: str, folder: Path, snapshot: Path) -> dict[Path, str]:
    """Return a reference for each GGUF model, by its first file: USER/REPO with quantisation or file name."""
    try:
        paths = (path for path in snapshot.rglob("*") if is_repository_file(folder, path))
        files = [path.relative_to(snapshot).as_posix() for path in paths]
    except OSError:
        return {}
    names, models = {}, variants(files)
    for model in models:
        for tag in (model.files[0].rpartition("/")[2], model.label):  # the last unambiguous tag wins
            name = f"{repository}:{tag}"
            with suppress(UsageError):
                typeable = parse(name, lambda _: False) == Reference(reference.HUB, repository, tag)
                if typeable and not model.missing and matching_variants(models, tag) == [model]:
                    names[snapshot / model.files[0]] = name
    return names
