"""Prompts on disk, for later processes: the tokens of a sequence, and its memory as llama.cpp writes it.

A file is one of numpy's (.npz), whose checksums find damage, not malice: llama.cpp parses the states, so that
the folder is to be trusted like the model.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import CacheSlot, common_prefix
from paceline.system.atomic import atomic_write
from paceline.system.home import expand_user, make_private_folder, to_stderr

MAX_FOLDER_BYTES = 8 << 30
MIN_SAVED_TOKENS = 512
State = NDArray[np.uint8]


class SavedPrompt(CacheSlot):
    """A file as a slot, without tokens if it cannot be used."""

    def __init__(self, path: Path, key: str, *, n_ctx: int, n_vocab: int, is_stateful: bool) -> None:
        super().__init__(is_stateful=is_stateful)
        self.path = path
        try:
            with path.open("rb") as opened, np.load(opened) as file:
                tokens = np.array(file["tokens"], np.int64).tolist()
                places = sorted(int(name) for name in file.files if name.isdigit())
                fits = 0 < places[0] <= places[-1] == len(tokens) <= n_ctx and str(file["key"]) == key
            if not fits or not 0 <= min(tokens) <= max(tokens) < n_vocab:
                raise ValueError
            self.cached, self.states = tokens, dict.fromkeys(places)
        except Exception:  # numpy raises what a damaged file leads to
            self.discard()

    def read(self) -> dict[int, State]:
        """Return the states by their numbers of tokens, that of all tokens last; none of a damaged file."""
        try:
            with self.path.open("rb") as opened, np.load(opened) as file:
                os.utime(self.path)
                return {n: np.array(file[str(n)], np.uint8) for n in self.states}
        except Exception:  # as above
            self.discard()
            return {}

    def discard(self) -> None:
        self.cached = []
        to_stderr(f"{self.path}: is damaged, or of another model: this saved prompt is not used")


class SavedPrompts:
    """The prompts of a model in a folder. key: all that their states depend on. given: see SavedPrompt.
    Raises OSError if the folder cannot be made."""

    def __init__(self, folder: str, key: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        self._folder, self._given = expand_user(folder), given
        self._key = json.dumps({"format": 1, **key}, sort_keys=True)
        self._name = hashlib.sha256(self._key.encode()).hexdigest()[:16]
        make_private_folder(self._folder)
        paths = self._folder.glob(f"{self._name}-*.prompt")
        self._prompts = [SavedPrompt(path, self._key, **given) for path in paths]

    def longest(self, tokens: Sequence[int], least: int) -> SavedPrompt | None:
        """Return the prompt that has most of the tokens in front, if these are at least so many."""
        best = max(self._prompts, key=lambda prompt: prompt.reusable_prefix(tokens), default=None)
        return None if best is None or best.reusable_prefix(tokens) < least else best

    def lacks(self, tokens: Sequence[int]) -> bool:
        """Return whether so much of the tokens is in no file that one is worth writing."""
        n = max((common_prefix(prompt.cached, tokens) for prompt in self._prompts), default=0)
        return len(tokens) - n >= max(MIN_SAVED_TOKENS, n // 2)

    def save(self, tokens: list[int], states: Mapping[int, State]) -> None:
        """Write a prompt; drop damaged ones, those that it begins with, and the oldest of too many."""
        arrays: dict[str, Any] = {"key": self._key, "tokens": tokens}
        arrays |= {str(n): state for n, state in states.items()}
        path = self._folder / f"{self._name}-{hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]}.prompt"
        try:
            with atomic_write(path, private=True) as part, part.open("wb") as file:
                np.savez(file, **arrays)
            for old in self._prompts:
                if common_prefix(old.cached, tokens) == len(old.cached) < len(tokens):
                    old.path.unlink(missing_ok=True)
            files = sorted(self._folder.glob("*.prompt"), key=lambda path: path.stat().st_mtime)
            while sum(path.stat().st_size for path in files) > MAX_FOLDER_BYTES:
                files.pop(0).unlink()
        except OSError as error:
            to_stderr(f"{path}: the prompt cannot be saved: {error.strerror}")
        self._prompts = [prompt for prompt in self._prompts if prompt.path.exists()]
        if path.exists():
            self._prompts.append(SavedPrompt(path, self._key, **self._given))
