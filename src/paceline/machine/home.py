"""Where Paceline keeps what belongs to its user: corpora, and what it remembers."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

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
