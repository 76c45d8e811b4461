"""Recording of answered requests as a trace that `traces.read` can read.

Each request is one line, written at once. A killed process leaves at most its last line cut short, which
readers skip and the next writer ends. Several processes may record into one file."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import LineError, object_of, raw_lines
from paceline.request_handle import Generation
from paceline.settings import PLAIN, Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.rng import RNG_NAME
from paceline.speculative.sampling import Sampling
from paceline.speculative.vocabulary import Vocab
from paceline.system.locks import folder_lock

FORMAT = 1  # raised when a field changes its meaning or is removed
BEGIN = b'{"format":'
KNOWN_BY = {"prompt_tokens", "prompt", "messages", "request", "body"}
INTERRUPTED = "interrupted"


class Recorder:
    """A writer that appends answered requests to `path`, which need not exist.
    warn: called once with the reason if a request cannot be written; recording then stops. Raises UsageError
    for a file that cannot be written or holds other data."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.adding = True
        self._warn = warn
        self._head: dict[str, Any] = {}
        self._first = _first(path)

    def begin(self, vocab: Vocab, model: str) -> None:
        """Set the model. Raises UsageError if the file holds requests of another vocabulary."""
        head = {"n_vocab": vocab.size, "vocab": vocab.fingerprint}
        if any(self._first.get(name, ours) != ours for name, ours in head.items()):
            raise UsageError(f"--record {self.path}: is of another vocabulary; name another file")
        self._head = {"format": FORMAT, **head, "model": model}

    def add(
        self, prompt: Sequence[int], generation: Generation, *, id_: str, sampling: Sampling, seed: int,
        drafting: Drafting = PLAIN, category: str = "", session: str = "",
    ) -> None:  # fmt: skip
        """Append a request, unless its answer is empty. session: of one conversation, in the order added."""
        if not self.adding or not generation.tokens:
            return
        # With sampled drafts, the noise of a token depends on the drafts.
        by_place = not sampling.greedy and drafting.draft_temp == 0.0
        names = {"id": id_, "category": category, "session": session}
        line: dict[str, Any] = {
            **self._head,
            **{name: value for name, value in names.items() if value},
            "seed": seed,
            **({"draws": RNG_NAME} if by_place else {}),
            "sampling": non_default_settings(sampling, Sampling()),
            # The names always: the times are those of the drafters.
            "drafting": {"drafters": drafting.drafters} | non_default_settings(drafting, Drafting()),
            "stop_reason": generation.stop_reason or INTERRUPTED,
            "times": {
                "prompt": generation.prompt_seconds,
                "seconds": generation.seconds,
                **{name: getattr(generation.stats, name) for name in ("steps", "drafted", "accepted")},
            },
            "prompt_tokens": list(prompt),
            "tokens": generation.tokens,
        }
        try:
            data = json.dumps(line, separators=(",", ":"), allow_nan=False)
            append_line(self.path, data.encode() + b"\n")
        except OSError as error:
            self.adding = False
            why = f"cannot be written ({error.strerror})"
            self._warn(f"--record {self.path}: {why}; nothing more is recorded")


def non_default_settings(settings: Any, default: Any) -> dict[str, Any]:
    """Return the settings that differ from the default; an infinite logit bias as text, for JSON."""
    usual = asdict(default)
    out = {name: value for name, value in asdict(settings).items() if value != usual[name]}
    if "logit_bias" in out:
        biases = out["logit_bias"].items()
        out["logit_bias"] = {token: bias if math.isfinite(bias) else str(bias) for token, bias in biases}
    return out


def append_line(path: Path, line: bytes) -> None:
    """Append a whole line or nothing. Raises OSError."""
    # Locked, since its end is stable only while nobody writes.
    with os.fdopen(_open(path), "ab+", buffering=0) as file, folder_lock(path):
        if end := file.seek(0, os.SEEK_END):
            file.seek(end - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line  # a killed process left the last line cut short
        written = file.write(line)
        if written < len(line):
            file.truncate(file.tell() - written)
            raise OSError(errno.ENOSPC, "the disk is full")


def _open(path: Path) -> int:
    # Private: it holds users' prompts.
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)


def _first(path: Path) -> dict[str, Any]:
    """Return the first recorded request, {} if there is none."""
    if path.exists() and not path.is_file():
        raise UsageError(f"--record {path}: is no file; name one, or one to be made")
    try:
        os.close(_open(path))
    except OSError as error:
        why = f"cannot be written ({error.strerror})"
        raise UsageError(f"--record {path}: {why}; name another file") from error
    first: dict[str, Any] = {}
    if line := next(raw_lines(path), None):
        with suppress(LineError):  # may be cut short
            first = object_of(line)
        if not KNOWN_BY & first.keys() and not line.data.startswith(BEGIN):
            raise UsageError(f"--record {path}: holds no recorded requests; name another file")
    return first
