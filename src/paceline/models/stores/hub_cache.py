"""The Hugging Face cache: a folder for each repository, with all revisions of it that were downloaded.

llama.cpp keeps its downloads in the same way, in the same place unless LLAMA_CACHE names another
(common/hf-cache.cpp).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from paceline.models.stores import reference as names_of
from paceline.models.stores.hub_layout import current_revision, is_repository_file
from paceline.models.stores.places import HUB
from paceline.models.stores.reference import Reference, matching_variants, parse, variants
from paceline.models.stores.search import FolderSearch, ModelCandidate, walk
from paceline.speculative.errors import UsageError

REPOSITORY = "models--"  # how huggingface_hub names a repository's folder


def candidates(folder: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    """Yield the models of one repository."""
    waiting = search.folder(folder / "blobs", (".incomplete",))
    if unfinished := sum(not entry.folder for entry in waiting):
        search.add_note(folder, f"{unfinished} of its files are being downloaded, or were left half-way")
    main = current_revision(folder)
    for snapshot in search.folder(folder / "snapshots"):
        if snapshot.folder:
            repository = folder.name.removeprefix(REPOSITORY).replace("--", "/")
            names = _names(repository, folder, snapshot.path) if snapshot.path.name == main else {}
            for path in walk(snapshot.path, search):
                yield ModelCandidate(path, names.get(path, str(path)), HUB)


def _names(repository: str, folder: Path, snapshot: Path) -> dict[Path, str]:
    """By the first file of each model the name that leads to it: with its quantisation, or with its file's
    name where that does not tell it from the others. A folder of safetensors is known by its path only."""
    try:
        own = (path for path in snapshot.rglob("*") if is_repository_file(folder, path))
        files = [path.relative_to(snapshot).as_posix() for path in own]
    except OSError:
        return {}
    found, models = {}, variants(files)
    for one in models:
        for word in (one.files[0].rpartition("/")[2], one.label):  # the last that tells it from others
            reference = f"{repository}:{word}"
            with suppress(UsageError):
                meant = parse(reference, lambda _: False) == Reference(names_of.HUB, repository, word)
                if meant and not one.missing and matching_variants(models, word) == [one]:
                    found[snapshot / one.files[0]] = reference
    return found
