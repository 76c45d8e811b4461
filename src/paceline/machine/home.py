"""Where Paceline keeps what belongs to its user: corpora, what it remembers, what it has measured."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError


def home() -> Path:
    """PACELINE_HOME, or the platform's own folder for such data. It need not exist yet."""
    if given := os.environ.get("PACELINE_HOME"):
        path = expanded(given)
        if str(path).startswith("~"):
            raise UsageError(f"PACELINE_HOME={given}: there is no such home directory; write the path out")
        return path.absolute()
    from platformdirs import user_data_path

    return user_data_path("paceline")


def kept_at(folder: str, key: Mapping[str, Any]) -> Path:
    """The file for what was measured of something; key: everything that it depends on, as JSON has it."""
    text = json.dumps(key, sort_keys=True)
    return home() / folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def expanded(path: str | os.PathLike[str]) -> Path:
    """With ~ and ~USER written out; as it is where there is no such user, for which Path's own raises."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def write_whole(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half a file, and of several writers the last one stays. Makes
    the folder. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
