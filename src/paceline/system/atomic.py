"""Atomic writes: readers never see half a file, and the last of several writers wins."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.shutdown import NAME, PRIVATE, USUAL, scratch_file


@contextmanager
def atomic_write(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Make an empty file, which is renamed to `path` at the end, or removed on errors. Links are followed.
    private: readable by the user only, from the first byte on; by default by the umask, or like the replaced
    file. Raises OSError, which names `path`."""
    target = Path(os.path.realpath(path))
    try:
        before = None
        with suppress(FileNotFoundError):
            before = target.stat().st_mode
        if before is not None and not stat.S_ISREG(before):
            raise OSError(errno.EINVAL, "is no regular file", str(target))
        usual = before is None and not private
        with scratch_file(target.parent, USUAL if usual else PRIVATE) as part:
            if before is not None and not private:
                part.chmod(stat.S_IMODE(before) & 0o777)
            yield part
            with part.open("rb+") as file:
                os.fsync(file.fileno())  # a complete name must not outlive its bytes
            part.replace(target)
    except OSError as error:
        if _is_own_error(error):
            error.filename, error.filename2 = str(path), None
        raise


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an indented JSON object, whole or not at all. Raises OSError."""
    with atomic_write(path) as part:
        part.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


def check_output(out: Path, *sources: Path, force: bool) -> None:
    """Raise UsageError unless `out` can be written, and is none of `sources`; before hours of work."""
    folder = Path(os.path.realpath(out)).parent
    if not folder.is_dir():
        problem = f"there is no folder {folder}; create it first"
    elif out.exists() and not out.is_file():
        problem = "is no regular file; give the name of a file to write"
    elif out.exists() and any(source.exists() and out.samefile(source) for source in sources):
        problem = "is what it would be made from; choose another name"
    elif out.exists() and not force:
        problem = "exists; choose another name, or overwrite it with --force"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{folder} cannot be written to; choose another folder"
    else:
        return
    raise UsageError(f"{out}: {problem}")


@contextmanager
def write_output(out: Path) -> Iterator[Path]:
    """Write a file that the user named, atomically. Raises PacelineError if it cannot be written."""
    try:
        with atomic_write(out) as part:
            yield part
    except OSError as error:
        if error.filename != str(out):
            raise
        why = f"cannot be written ({error.strerror})"
        raise PacelineError(f"{out}: {why}; make room there, or choose another name") from error


@contextmanager
def writing(place: object, left: str) -> Iterator[None]:
    """Raise PacelineError in place of OSError, as of a full disk. left: what an interrupted run keeps."""
    try:
        yield
    except OSError as error:
        raise PacelineError(
            f"{place}: cannot be written ({error.strerror or error}); make room there, and give the same "
            f"command again: {left}"
        ) from error


def private_file(path: Path) -> BinaryIO:
    """Open `path` for writing, readable by the user only. Raises OSError."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, PRIVATE))


def _is_own_error(error: OSError) -> bool:
    """Return False for errors of other files that were read, and of a closed terminal."""
    if error.errno is None or isinstance(error, BrokenPipeError):
        return False
    return error.filename is None or NAME.fullmatch(Path(os.fsdecode(error.filename)).name) is not None
