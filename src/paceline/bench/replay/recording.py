"""Recording what was asked and answered, as a trace that `traces.read` reads again.

A request is one line, and a line is written at once: a process that is killed leaves whole lines, and at
most the last one cut short, which readers leave out and the next writer goes on after. Nothing is held open
between two lines, and several processes may record into one file.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import Line, LineError, object_of, raw_lines
from paceline.config import Drafting
from paceline.models.fingerprint import fingerprint
from paceline.request_handle import Generation
from paceline.speculative.errors import UsageError
from paceline.speculative.rng import DRAWS
from paceline.speculative.sampling import Sampling
from paceline.speculative.vocabulary import Vocab

FORMAT = 1  # goes up when a name changes its meaning or goes away
BEGIN = b'{"format":'
KNOWN_BY = {"prompt_tokens", "prompt", "messages", "request", "body"}
INTERRUPTED = "interrupted"
PLAIN = Drafting(drafters=("none",))


class Recorder:
    """Appends answered requests to `path`, which need not be there. top_k: how many of the target's likeliest
    are recorded at each answered token; they have to be in what is added (LLM.stream's `logprobs`).

    Made before a model is loaded: raises UsageError for a file that cannot be written, or that is none of
    recorded requests. warn: told, once, why a request could not be added, and nothing more is added then: an
    answer is worth more than its record.
    """

    def __init__(self, path: Path, warn: Callable[[str], None], *, top_k: int = 0) -> None:
        if top_k < 0:
            raise UsageError(f"--record-top-k {top_k}: must be at least 0")
        self.path, self.top_k = path, top_k
        self.adding = True
        self._warn = warn
        self._head: dict[str, Any] = {}
        _check(path)

    def begin(self, vocab: Vocab, model: str) -> None:
        """All that is added is of this vocabulary. Raises UsageError, with the line, where the file holds
        requests of another; they could not be replayed together."""
        if self.top_k > vocab.size:
            raise UsageError(f"--record-top-k {self.top_k}: the model has {vocab.size:,} tokens")
        head: dict[str, Any] = {"format": FORMAT, "n_vocab": vocab.size, "vocab": fingerprint(vocab)}
        ours = _line(head)[:-2]  # without the bracket: as our own lines begin
        for line in raw_lines(self.path) if self.path.exists() else ():
            if line.data.startswith(ours):
                continue
            try:
                said = object_of(line)
            except LineError:  # readers leave it out
                continue
            if unlike := [name for name in ("n_vocab", "vocab") if said.get(name, head[name]) != head[name]]:
                raise UsageError(
                    f"--record {self.path}: line {line.number} is of another vocabulary ({unlike[0]} "
                    f"{_short(said[unlike[0]])}, this model's {_short(head[unlike[0]])}); name another file"
                )
        self._head = head | {"model": model}

    def add(
        self,
        prompt: Sequence[int],
        said: Generation,
        *,
        id_: str,
        sampling: Sampling,
        seed: int,
        drafting: Drafting = PLAIN,
        category: str = "",
        session: str = "",
    ) -> None:
        """One request; one without a token is left out. session: those that share it are one conversation, in
        the order they are added."""
        if not self.adding or not said.tokens:
            return
        by_place = not sampling.greedy and drafting.temperature == 0.0  # else drafts had a part in it
        told: dict[str, Any] = {"id": id_, "category": category, "session": session}
        told = {name: value for name, value in told.items() if value} | {
            "seed": seed,
            **({"draws": DRAWS} if by_place else {}),
            "sampling": changed(sampling, Sampling()),
            # The names always: they say whose the times are.
            "drafting": {"drafters": drafting.drafters} | changed(drafting, Drafting()),
            "stop_reason": said.stop_reason or INTERRUPTED,
            "times": {
                "prompt": said.prompt_seconds,
                "seconds": said.seconds,
                "steps": said.stats.steps,
                "drafted": said.stats.drafted,
                "accepted": said.stats.accepted,
            },
            "prompt_tokens": list(prompt),
            "tokens": said.tokens,
        }
        if self.top_k:
            told["top_k"] = [[token for token, _ in one.top[: self.top_k]] for one in said.logprobs]
        try:
            append(self.path, _line(self._head | told))
        except OSError as error:
            self.adding = False
            self._warn(
                f"--record {self.path}: cannot be written ({error.strerror}); neither this answer nor later "
                "ones are recorded"
            )


def changed(settings: Any, default: Any) -> dict[str, Any]:
    """What differs, as JSON can hold it: -inf as text, as in the records of `run`."""
    said, usual = asdict(settings), asdict(default)
    return {f.name: _finite(said[f.name]) for f in fields(settings) if said[f.name] != usual[f.name]}


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def append(path: Path, line: bytes) -> None:
    """The whole line or nothing of it, on a line of its own. Raises OSError."""
    # For the user's eyes only: what people ask is in it.
    opened = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(opened, "ab+", buffering=0) as file:
        _wait_for_others(opened)
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line  # after what a killed process left
        written = file.write(line)
        if written < len(line):
            end = file.tell()
            if os.fstat(opened).st_size == end:  # otherwise another process has written after it
                file.truncate(end - written)
            raise OSError(errno.ENOSPC, "it took a part of the line only, as a full disk does")


def _wait_for_others(opened: int) -> None:
    """Until it is closed nobody else of us writes: how a file ends can only be told of one at rest."""
    try:
        import fcntl
    except ImportError:  # Windows: the worst that comes of it is an empty line
        return
    with suppress(OSError):  # as on some network file systems
        fcntl.flock(opened, fcntl.LOCK_EX)


def _line(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _short(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)[:12]


def _check(path: Path) -> None:
    where = f"--record {path}"
    try:
        if not path.exists():
            if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
                raise UsageError(f"{where}: cannot be made there; name a file in a folder to be written in")
            return
        if not path.is_file():
            raise UsageError(f"{where}: is no file; name one, or one to be made")
        path.open("ab").close()
    except OSError as error:
        raise UsageError(f"{where}: cannot be written ({error.strerror}); name another file") from error
    first = next(raw_lines(path), None)
    if first is not None and not _is_ours(first):
        raise UsageError(f"{where}: holds no recorded requests (line {first.number}); name another file")


def _is_ours(line: Line) -> bool:
    """Nothing is added to a text, a model or a schema by mistake. A line of ours may be cut short."""
    try:
        return bool(KNOWN_BY & object_of(line).keys())
    except LineError:
        return line.data.startswith(BEGIN)
