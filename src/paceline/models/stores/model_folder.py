"""Folders that models lie in: what in them is a model, and what only looks like one."""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from paceline.models.stores.search import FolderEntry, FolderSearch, file_id

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
UNFINISHED = (".downloadinprogress", ".gguf.part", ".incomplete")
ENDINGS = (".gguf", ".safetensors", "config.json", *UNFINISHED)  # that something follows from
# Files beside a model that belong to it, as llama.cpp knows them by name (common/download.cpp).
BESIDE = {
    "mmproj": "a projector for pictures or sound",
    "imatrix": "an importance matrix",
    "mtp-": "a draft head",
    "eagle3-": "a draft head",
    "dflash-": "a draft head",
    "dspark-": "a draft head",
}
REPOSITORY = "models--"  # how huggingface_hub names a repository's folder
OTHERS = ("datasets--", "spaces--", "kernels--")
MANIFESTS = ("manifests-v2", "manifests")  # the first one is Ollama's newer


class EntryKind(Enum):
    """MODEL: a GGUF file, the first one of a split model, or a folder with config.json and safetensors.
    OLLAMA: a folder that Ollama keeps its models in. REPOSITORY: one of the Hugging Face cache."""

    MODEL = "model"
    OLLAMA = "ollama"
    REPOSITORY = "repository"


def walk(root: Path, search: FolderSearch) -> Iterator[tuple[EntryKind, Path]]:
    """All models below `root`. Links to folders are followed, after the folders themselves and each once;
    hidden folders are left alone, and stores within it are found but not entered."""
    seen: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):
        seen.add(file_id(root.stat()))
    folders, links = [root], deque[FolderEntry]()
    while folders or links:
        if not folders:
            link = links.popleft()
            if link.id in seen:
                continue
            seen.add(link.id)
            folders.append(link.path)
        folder = folders.pop()
        entries = search.folder(folder, ENDINGS)
        below = [entry for entry in entries if entry.folder]
        names = {entry.path.name for entry in below}
        if folder.name.startswith(REPOSITORY) and "snapshots" in names:
            yield EntryKind.REPOSITORY, folder
        elif "blobs" in names and names.intersection(MANIFESTS):
            yield EntryKind.OLLAMA, folder
        else:
            for path in models(folder, [entry for entry in entries if not entry.folder], search):
                yield EntryKind.MODEL, path
            inside = [entry for entry in below if not entry.path.name.startswith((".", *OTHERS))]
            links.extend(entry for entry in inside if entry.link)
            # A folder may be there twice, too, where a disk is mounted so.
            new = [entry for entry in inside if not entry.link and entry.id not in seen]
            seen.update(entry.id for entry in new)
            folders += [entry.path for entry in reversed(new)]


def models(folder: Path, files: Sequence[FolderEntry], search: FolderSearch) -> Iterator[Path]:
    """Those that one folder's files are."""
    names = {entry.path.name.lower() for entry in files}
    if "adapter_config.json" in names:
        search.note(folder, "is an adapter, no model")
    elif "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
    for entry in files:
        name = entry.path.name.lower()
        part = PART.fullmatch(name)
        if name.endswith(UNFINISHED):
            search.note(entry.path, "is being downloaded, or was left half-way")
        elif not name.endswith(".gguf"):
            continue
        elif of := next((what for word, what in BESIDE.items() if word in name), None):
            search.note(entry.path, f"is {of}, no model")
        elif part is None or int(part[2]) == 1:
            yield entry.path
        elif f"{part[1]}-00001-of-{part[3]}.gguf" not in names:
            search.note(entry.path, "is a part of a model whose first part is missing")
