"""What headers said, kept on the disk, so that hundreds of models are listed at once the next time.

One JSON file for all. It is only a cache: where it cannot be read or written, headers are read again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.core.errors import ModelError
from paceline.machine.home import home, write_whole
from paceline.machine.models.facts import Facts
from paceline.machine.models.header import read
from paceline.machine.models.plain_file import read_json

# Another number where the same files would be told otherwise.
FORMAT = 2
MAX_SIZE = 64 << 20
MAX_ENTRIES = 16_384
MAX_TEMPLATE = 1 << 16  # of characters; a model with a longer one is read each time

# How a file is known to be the one that was read: size, time of its last change in ns, and inode.
Stamp = list[int]
Entry = Mapping[str, Any]
_TEXTS = ("format", "name", "arch", "family", "quantisation", "memory")
_NUMBERS = (
    *("size", "n_ctx", "n_layers", "n_embd", "n_vocab", "experts", "experts_used"),
    *("sliding_window", "kv_bytes", "pooling"),
)


class FactsCache:
    """Owns what is known of files, for one run of a command; any number of threads may read. path: of the
    JSON file (None: below PACELINE_HOME). Leaving the context writes what is new, and drops what is gone."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or home() / "facts.json"
        self._known = _load(self._path)
        self._new: dict[str, Entry] = {}

    def __enter__(self) -> FactsCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.save()

    def read(self, path: str | Path) -> Facts:
        """As header.read without tokens, from the files only where they changed; all paths are absolute.
        Raises ModelError."""
        path = Path(path).absolute()
        key = str(path)
        if facts := _facts(self._new.get(key) or self._known.get(key)):
            return facts
        before = _stamps([path])
        facts = read(path, tokens=False)
        # What changed while it was read is not what was read.
        unchanged = before and before == _stamps([path])
        if unchanged and len(facts.chat_template or "") <= MAX_TEMPLATE and (stamps := _stamps(facts.files)):
            said = asdict(facts) | {"files": [str(file) for file in facts.files]}
            self._new[key] = {"stamps": stamps, "facts": said}
        return facts

    def save(self) -> None:
        """Whole or not at all; what other processes have added meanwhile stays."""
        if not self._new:
            return
        entries = {key: entry for key, entry in _load(self._path).items() if _facts(entry)}
        entries |= self._new
        kept = dict(list(entries.items())[-MAX_ENTRIES:])
        while len(text := json.dumps({"format": FORMAT, "models": kept})) > MAX_SIZE:
            kept = dict(list(kept.items())[(len(kept) + 1) // 2 :])
        with contextlib.suppress(OSError):  # a disk that is full, or not ours: read again next time
            write_whole(self._path, text)
        self._known, self._new = self._known | self._new, {}


def _load(path: Path) -> dict[str, Entry]:
    try:
        said = read_json(path, MAX_SIZE)
    except ModelError:
        return {}
    models = said.get("models")
    return models if said.get("format") == FORMAT and isinstance(models, dict) else {}


def _facts(entry: Any) -> Facts | None:
    """None unless the entry is whole, and its files are as they were."""
    if not isinstance(entry, dict) or not isinstance(said := entry.get("facts"), dict):
        return None
    files, template, parameters = said.get("files"), said.get("chat_template"), said.get("parameters")
    if not (
        all(isinstance(said.get(name), str) for name in _TEXTS)
        and all(type(said.get(name)) is int for name in _NUMBERS)
        and (template is None or isinstance(template, str))
        and (parameters is None or type(parameters) is int)
        and isinstance(files, list)
        and files
        and all(isinstance(file, str) for file in files)
    ):
        return None
    paths = tuple(Path(file) for file in files)
    if entry.get("stamps") != _stamps(paths):
        return None
    values = {name: said[name] for name in (*_TEXTS, *_NUMBERS)}
    return Facts(files=paths, chat_template=template, parameters=parameters, **values)


def _stamps(paths: Sequence[Path]) -> list[Stamp]:
    """Empty where one of them is gone."""
    try:
        stats = [path.stat() for path in paths]
    except (OSError, ValueError):
        return []
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ino] for stat in stats]
