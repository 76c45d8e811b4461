"""The Hugging Face cache: a folder for each repository, with all revisions of it that were downloaded.

llama.cpp keeps its downloads in the same way, in the same place unless LLAMA_CACHE names another
(common/hf-cache.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from paceline.models.stores.hub_layout import is_own
from paceline.models.stores.model_folder import REPOSITORY, EntryKind, walk
from paceline.models.stores.reference import HUB, Reference, parse, pick, variants
from paceline.models.stores.search import FolderSearch, ModelCandidate
from paceline.speculative.errors import UsageError

REVISION = re.compile(r"[0-9a-f]{40}")


def candidates(folder: Path, search: FolderSearch, *, named: bool) -> Iterator[ModelCandidate]:
    """The models of one repository. named: whether `USER/REPO:QUANTISATION` leads to this cache."""
    waiting = search.folder(folder / "blobs", (".incomplete",))
    if unfinished := sum(not entry.folder for entry in waiting):
        search.note(folder, f"{unfinished} of its files are being downloaded, or were left half-way")
    main = _main(folder) if named else None
    for snapshot in search.folder(folder / "snapshots"):
        if snapshot.folder:
            repository = folder.name.removeprefix(REPOSITORY).replace("--", "/")
            names = _names(repository, folder, snapshot.path) if snapshot.path.name == main else {}
            for kind, path in walk(snapshot.path, search):
                if kind is EntryKind.MODEL:
                    yield ModelCandidate(path, names.get(path, str(path)))


def _names(repository: str, folder: Path, snapshot: Path) -> dict[Path, str]:
    """By the first file of each model the name that leads to it: with its quantisation, or with its file's
    name where that does not tell it from the others. A folder of safetensors is known by its path only."""
    try:
        own = (path for path in snapshot.rglob("*") if is_own(folder, path))
        files = [path.relative_to(snapshot).as_posix() for path in own]
    except OSError:
        return {}
    found = {}
    for one in variants(files):
        for word in (one.label, one.files[0].rpartition("/")[2]):
            reference = f"{repository}:{word}"
            try:
                meant = parse(reference, nowhere) == Reference(HUB, repository, word)
                if meant and pick(files, word, repository) == one.files:
                    found[snapshot / one.files[0]] = reference
                    break
            except UsageError:
                continue
    return found


def nowhere(_path: str) -> bool:
    return False


def _main(folder: Path) -> str | None:
    try:
        with (folder / "refs" / "main").open("rb") as file:
            said = file.read(100).decode("ascii", "replace").strip()
    except OSError:
        return None
    return said if REVISION.fullmatch(said) else None
