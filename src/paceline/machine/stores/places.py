"""Where other programs keep their models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path

from paceline.core.errors import ModelError
from paceline.machine.models.plain_file import read_text
from paceline.machine.stores.search import Search

OLLAMA, HUB, LM_STUDIO, LLAMA_CPP = "Ollama", "Hugging Face", "LM Studio", "llama.cpp"
OLLAMA_SERVICE = Path("/usr/share/ollama/.ollama/models")  # where Linux runs it as a user of its own
MAX_PATH = 4096


def places(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Where other programs keep their models: the name of each, and a folder that need not exist."""
    home = Path(environ.get("HOME") or environ.get("USERPROFILE") or Path.home())

    def first(*given: tuple[str, str]) -> Path | None:
        return next(
            (Path(environ[name]).expanduser() / below for name, below in given if environ.get(name)), None
        )

    hub = first(
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    )
    llama = first(("LLAMA_CACHE", ""), ("XDG_CACHE_HOME", "llama.cpp"))
    if llama is None and sys.platform == "darwin":
        llama = home / "Library" / "Caches" / "llama.cpp"
    if llama is None and sys.platform == "win32":
        llama = first(("LOCALAPPDATA", "llama.cpp"))
    ollama = first(("OLLAMA_MODELS", ""))
    found = [
        *((OLLAMA, one) for one in ([ollama] if ollama else [home / ".ollama" / "models", OLLAMA_SERVICE])),
        (HUB, hub or home / ".cache" / "huggingface" / "hub"),
        *((LM_STUDIO, folder) for folder in lm_studio(home)),
        (LLAMA_CPP, llama or home / ".cache" / "llama.cpp"),
    ]
    return list(dict.fromkeys(found))


def lm_studio(home: Path) -> list[Path]:
    """Its folder moved in time; a file tells where it is, and its settings may name another for models."""
    homes = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    with contextlib.suppress(ModelError):
        pointer = read_text(home / ".lmstudio-home-pointer", MAX_PATH).strip()
        homes.insert(0, home / pointer)
    found = []
    for one in homes:
        settings = Search().json(one / "settings.json") or {}
        named = settings.get("downloadsFolder")
        found += [Path(named)] if isinstance(named, str) and Path(named).is_absolute() else []
        found.append(one / "models")
    return list(dict.fromkeys(found))
