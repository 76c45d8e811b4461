"""Checks of a GGUF file before llama.cpp gets it, since a broken file may end the process.

The header is read first, and a file that is new on this machine is loaded once in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from paceline.models.headers.header import GGUFMetadata, read_parts, split_part_paths
from paceline.models.headers.plain_file import require_gguf_path as require_gguf_path
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.printable import printable
from paceline.system.home import record_path, write_atomic

# A trial reads all weights once: seconds to begin with, and bytes a second of a slow disk.
BASE_TIMEOUT_SECONDS, MIN_READ_BYTES_PER_SECOND = 60.0, 20e6
STARTED_WORD = "begun"  # a trial's word on stdout that whatever happens now is the file's doing
ABORTED = re.compile(r"llama\.cpp gave up \((?P<why>.*)\);|what\(\): +(?P<thrown>.*)")
PACKAGE_FOLDER = Path(__file__).parents[2]  # what comes with the package is as good as the package
NO_VOCABULARY = ("none", "no_vocab")

in_load_subprocess = False  # in a process that tries a file


def validate_gguf(path: Path, **way: Any) -> None:
    """Refuse a file that llama.cpp cannot load. way: settings of the load (vocab_only, gpu_layers).

    Raises UsageError where `path` is no file or not the first part of a model, and ModelError where the file
    is no model, or a model that ends llama.cpp.
    """
    selected = _record_path(path, way)
    if selected.exists():
        return
    parts = read_parts(path, tokens=False)
    if parts[0].path != path:
        raise UsageError(f"{path}: is one of {len(parts)} parts of a model: give the first, {parts[0].path}")
    if not way["vocab_only"] and GGUFMetadata(parts[0]).text("tokenizer.ggml.model") in NO_VOCABULARY:
        raise ModelError(f"{path}: has no vocabulary, so it writes no text; give another model")
    if (
        in_load_subprocess
        or path.is_relative_to(PACKAGE_FOLDER)
        or not _load_in_subprocess(path, sum(part.size for part in parts), way)
    ):
        return
    if selected == _record_path(path, way):  # what changed while it was tried is not what was tried
        with contextlib.suppress(OSError):  # a disk that is full, or not ours: tried again next time
            write_atomic(selected, "{}\n")


def sizes(path: Path) -> list[int]:
    """Return the bytes of each of the model's files. Raises UsageError where `path` is no file."""
    require_gguf_path(path)
    return [part.stat().st_size for part in split_part_paths(path) if part.is_file()]


def _record_path(path: Path, way: dict[str, Any]) -> Path:
    """Return the note that the model's files as they are now have been tried. Raises UsageError for no
    file."""
    from llama_cpp import __version__

    require_gguf_path(path)
    stats = [(part.absolute(), part.stat()) for part in split_part_paths(path) if part.is_file()]
    files = [(str(part), s.st_size, s.st_mtime_ns, s.st_ino) for part, s in stats]
    key = repr((files, path.name, sorted(way.items())))
    return record_path("admitted", {"files": key, "engine": __version__})


def _load_in_subprocess(path: Path, size: int, way: dict[str, Any]) -> bool:
    """Return whether a process could load the file. Raises ModelError if it crashed or never ended."""
    if not sys.executable:  # Python within another program
        return False
    code = f"from paceline.backends.llama_cpp.trial import main; main({os.fspath(path)!r}, {way!r})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GGML_NO_BACKTRACE": "1"}
    limit = BASE_TIMEOUT_SECONDS + size / MIN_READ_BYTES_PER_SECOND
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{path}: llama.cpp was stuck on it for {limit:.0f} s when it was tried: "
            "is the file damaged? fetch it again"
        ) from None
    except OSError:
        return False
    if STARTED_WORD.encode() not in done.stdout:
        return False
    if done.returncode:
        raise ModelError(f"{path}: {_last_words(done)}: is the file damaged? fetch it again")
    return True


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return how the process ended, in few words."""
    if output := ABORTED.search(done.stderr.decode(errors="replace")):
        why = output["why"] or output["thrown"]
        return f"llama.cpp does not survive it ({printable(why[:160])})"
    with contextlib.suppress(ValueError):
        return f"llama.cpp does not survive it ({signal.Signals(-done.returncode).name})"
    return "llama.cpp does not survive it"
