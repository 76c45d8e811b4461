"""A search for models in folders that other programs, and perhaps other people, have written.

Broken or circular links, unreadable folders, vanished files and misnamed files each become a note, and the
search continues.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.models.headers.plain_file import read_json
from paceline.models.stores.reference import AUXILIARY_FILES
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII | re.DOTALL)
UNFINISHED = (".downloadinprogress", ".gguf.part", ".incomplete")
ENDINGS = (".gguf", ".safetensors", "config.json", *UNFINISHED)
OTHERS = ("datasets--", "spaces--", "kernels--")  # repositories of huggingface_hub that are no models
LARGEST_JSON = 1 << 20  # bytes; a manifest has about a thousand


@dataclass(frozen=True)
class ModelCandidate:
    """A file or folder that may be a model. reference: the name a user types, or the path. store: the program
    that owns the folder."""

    path: Path
    reference: str
    store: str


@dataclass(frozen=True)
class FolderEntry:
    """A folder entry, links followed. folder: True for a folder. link: True for a link."""

    path: Path
    folder: bool
    link: bool


class FolderSearch:
    """A search through folders. notes: a printable line for each skipped item."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def add_note(self, what: object, why: str) -> None:
        self.notes.append(printable(f"{what}: {why}"))

    def folder(self, path: Path, endings: tuple[str, ...] = ("",)) -> list[FolderEntry]:
        """Return the folders of a folder and its regular files with these endings, by name.

        A missing folder is empty. Other files, perhaps millions, are not even looked at.
        """
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and not entry.name.lower().endswith(endings):
                        continue
                    if (one := self._entry(Path(entry.path), entry.is_symlink())) is not None:
                        found.append(one)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.add_note(path, f"cannot be looked into ({error.strerror})")
        return sorted(found, key=lambda one: one.path.name)

    def _entry(self, path: Path, link: bool) -> FolderEntry | None:
        try:
            value = path.stat()
        except OSError as error:
            if path.suffix.lower() == ".gguf":
                missing = isinstance(error, FileNotFoundError)
                why = "its file is missing" if missing else f"cannot be read ({error.strerror})"
                self.add_note(path, why)
            return None
        folder = stat.S_ISDIR(value.st_mode)
        return FolderEntry(path, folder, link) if folder or stat.S_ISREG(value.st_mode) else None

    def json(self, path: Path) -> dict[str, Any] | None:
        """Return the object in a small JSON file; None, and a note, for anything else."""
        try:
            return read_json(path, LARGEST_JSON)
        except ModelError as error:
            self.notes.append(printable(str(error)))
            return None


def file_id(status: os.stat_result) -> tuple[int, int]:
    """Return an id of a file or folder that is the same for all its names."""
    return status.st_dev, status.st_ino


def walk(root: Path, search: FolderSearch) -> Iterator[Path]:
    """Yield all models below `root`: GGUF files, first parts of split models, and folders with safetensors.

    Linked folders come last, each once; hidden folders are skipped.
    """
    seen: set[tuple[int, int]] = set()
    folders = deque([root])
    while folders:
        folder = folders.pop()
        with contextlib.suppress(OSError):  # search.folder makes a note of it
            id_ = file_id(folder.stat())
            if id_ in seen:  # links and mounts show a folder twice
                continue
            seen.add(id_)
        entries = search.folder(folder, ENDINGS)
        yield from models(folder, [entry for entry in entries if not entry.folder], search)
        below = [e for e in entries if e.folder and not e.path.name.startswith((".", *OTHERS))]
        folders.extendleft(entry.path for entry in below if entry.link)
        folders.extend(entry.path for entry in reversed(below) if not entry.link)


def models(folder: Path, files: Sequence[FolderEntry], search: FolderSearch) -> Iterator[Path]:
    """Yield the models among the files of one folder."""
    names = {entry.path.name.lower() for entry in files}
    if "adapter_config.json" in names:
        search.add_note(folder, "is an adapter, no model")
    elif "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
    for entry in files:
        name = entry.path.name.lower()
        part = PART.fullmatch(name)
        if name.endswith(UNFINISHED):
            search.add_note(entry.path, "is being downloaded, or was left half-way")
        elif not name.endswith(".gguf"):
            continue
        elif of := next((what for word, what in AUXILIARY_FILES.items() if word in name), None):
            search.add_note(entry.path, f"is {of}, no model")
        elif part is None or int(part[2]) == 1:
            yield entry.path
        elif f"{part[1]}-00001-of-{part[3]}.gguf" not in names:
            search.add_note(entry.path, "is a part of a model whose first part is missing")
