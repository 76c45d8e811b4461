"""What headers said, kept on the disk, so that hundreds of models are listed at once the next time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import read
from paceline.system.home import keep, recall

FOLDER = "facts"
FORMAT = 3  # another number where the same files would be told otherwise
MAX_TEMPLATE = 1 << 16  # of characters; a model with a longer one is read each time


def read_cached(path: str | Path) -> ModelFacts:
    """As header.read without tokens, from the files only where they changed; all paths are absolute. A cache
    that cannot be read or written does no harm. Raises ModelError."""
    path = Path(path).absolute()
    key = {"file": str(path), "facts": FORMAT}
    try:
        said = recall(FOLDER, key)
        files = tuple(map(Path, said["facts"].pop("files")))
        if said["stamps"] == _stamps(files):
            return ModelFacts(files=files, **said["facts"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass
    before = _stamps([path])
    facts = read(path, tokens=False)
    # What changed while it was read is not what was read.
    unchanged = before and before == _stamps([path])
    if unchanged and len(facts.chat_template or "") <= MAX_TEMPLATE and (stamps := _stamps(facts.files)):
        found = asdict(facts) | {"files": [str(file) for file in facts.files]}
        keep(FOLDER, key, {"stamps": stamps, "facts": found}, lambda _: None, "it is read again")
    return facts


def _stamps(paths: Sequence[Path]) -> list[list[int]]:
    """How files are known to be those that were read: size, time of the last change in ns, and inode. Empty
    where one of them is gone."""
    try:
        stats = [path.stat() for path in paths]
    except (OSError, ValueError):
        return []
    return [[stat.st_size, stat.st_mtime_ns, stat.st_ino] for stat in stats]
