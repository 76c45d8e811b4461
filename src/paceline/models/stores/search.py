"""The model folders of other programs, and a search through folders that other people may have written.

Broken or circular links, unreadable folders, vanished files and misnamed files each become a note, and the
search continues."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.models.headers.plain_file import is_encodable_path, read_json
from paceline.models.stores.reference import auxiliary_kind
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable
from paceline.system.home import expand_user

OLLAMA, HUB, LM_STUDIO, LLAMA_CPP = "Ollama", "Hugging Face", "LM Studio", "llama.cpp"
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the system service on Linux
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


class FolderSearch:
    """A search through folders. notes: a printable line for each skipped item."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def add_note(self, what: object, why: str) -> None:
        self.notes.append(printable(f"{what}: {why}"))

    def folder(self, path: Path, endings: tuple[str, ...] = ("",)) -> list[os.DirEntry[str]]:
        """Return the folders of a folder and its regular files with these endings, by name.
        A missing folder is empty. Other files, perhaps millions, are not even looked at."""
        found = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and not entry.name.lower().endswith(endings):
                        continue
                    try:
                        mode = entry.stat().st_mode
                    except OSError as error:
                        if entry.name.lower().endswith(".gguf"):
                            missing = isinstance(error, FileNotFoundError)
                            why = "its file is missing" if missing else f"cannot be read ({error.strerror})"
                            self.add_note(entry.path, why)
                        continue
                    if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                        found.append(entry)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.add_note(path, f"cannot be looked into ({error.strerror})")
        return sorted(found, key=lambda entry: entry.name)

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
    Linked folders come last, each once; hidden folders are skipped."""
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
        yield from models(folder, [entry.name for entry in entries if not entry.is_dir()], search)
        below = [e for e in entries if e.is_dir() and not e.name.startswith((".", *OTHERS))]
        folders.extendleft(Path(entry.path) for entry in below if entry.is_symlink())
        folders.extend(Path(entry.path) for entry in reversed(below) if not entry.is_symlink())


def models(folder: Path, files: Sequence[str], search: FolderSearch) -> Iterator[Path]:
    """Yield the models among the files of one folder."""
    names = {file.lower() for file in files}
    if "adapter_config.json" in names:
        search.add_note(folder, "is an adapter, no model")
    elif "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
    for path in (folder / file for file in files):
        name = path.name.lower()
        part = PART.fullmatch(name)
        if name.endswith(UNFINISHED):
            search.add_note(path, "is being downloaded, or was left half-way")
        elif not name.endswith(".gguf"):
            continue
        elif kind := auxiliary_kind(name):
            search.add_note(path, f"is {kind}, no model")
        elif part is None or int(part[2]) == 1:
            yield path
        elif f"{part[1]}-00001-of-{part[3]}.gguf" not in names:
            search.add_note(path, "is a part of a model whose first part is missing")


def store_folders(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Return the model folders of other programs, each with the program's name. They need not exist."""
    home = home_of(environ)

    def first(*given: tuple[str, str]) -> Path | None:
        return next((expand_user(environ[name]) / below for name, below in given if environ.get(name)), None)

    llama = first(("LLAMA_CACHE", ""), ("XDG_CACHE_HOME", "llama.cpp"))
    if llama is None and sys.platform == "darwin":
        llama = home / "Library" / "Caches" / "llama.cpp"
    if llama is None and sys.platform == "win32":
        llama = first(("LOCALAPPDATA", "llama.cpp"))
    found = [
        *((OLLAMA, folder) for folder in ollama_folders(environ)),
        (HUB, hub_folder(environ)),
        *((LM_STUDIO, folder) for folder in lm_studio(home)),
        (LLAMA_CPP, llama or home / ".cache" / "llama.cpp"),
    ]
    return list(dict.fromkeys(found))


def home_of(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())


def ollama_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return OLLAMA_MODELS, or the folders of the user and of the system service."""
    if given := environ.get("OLLAMA_MODELS"):
        return [expand_user(given)]
    return [home_of(environ) / ".ollama" / "models", OLLAMA_SERVICE]


def hub_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the Hugging Face cache, by the rules of huggingface_hub."""
    if given := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return expand_user(os.path.expandvars(given))
    base = environ.get("XDG_CACHE_HOME") or home_of(environ) / ".cache"
    home = environ.get("HF_HOME") or str(Path(base) / "huggingface")
    return expand_user(os.path.expandvars(home)) / "hub"


def lm_studio(home: Path) -> list[Path]:
    """Return the folders of LM Studio's present and older versions, and those that its settings name."""
    folders = []
    for base in (home / ".lmstudio", home / ".cache" / "lm-studio"):
        configured = (FolderSearch().json(base / "settings.json") or {}).get("downloadsFolder")
        if isinstance(configured, str) and is_encodable_path(configured) and Path(configured).is_absolute():
            folders.append(Path(configured))
        folders.append(base / "models")
    return folders
