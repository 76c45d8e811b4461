"""The model folders of other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.models.headers.plain_file import is_encodable_path
from paceline.models.stores.search import FolderSearch
from paceline.system.home import expand_user

OLLAMA, HUB, LM_STUDIO, LLAMA_CPP = "Ollama", "Hugging Face", "LM Studio", "llama.cpp"
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the system service on Linux


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
