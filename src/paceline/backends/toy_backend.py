"""The toy model as a backend, so that every command can be tried without a model file: `-m toy:`.

`toy:seed=3,noise=0.3` sets arguments of ToyTarget; a draft model for `toy:` is `toy:noise=0.3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from paceline.backends.interface import BackendBuild, ForwardCallback, KernelStatus
from paceline.backends.toy import Array, ToyForward, ToySession, ToyTarget
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.text.grammar import TokenTrie
from paceline.text.interface import Text

ENGINE = f"toy, numpy {np.__version__}"
MAX_TOY_VOCAB = 10  # each token is one digit, so that a text has one tokenization
RANGES: Mapping[str, tuple[type, float, float]] = {
    "n_vocab": (int, 2, MAX_TOY_VOCAB),
    "seed": (int, 0, 2**32),
    "width": (int, 1, 1024),
    "sharpness": (float, 0.0, 1000.0),
    "noise": (float, 0.0, 1000.0),
    "eos": (int, 0, MAX_TOY_VOCAB - 1),
}


def open_engine(path: Path, /, *, n_ctx: int = 0, sessions: int = 1, **_: Any) -> ToyEngine:
    given: dict[str, Any] = {"n_ctx": n_ctx} if n_ctx else {}
    return ToyEngine(path, sessions=sessions, **given, **parse_toy_reference(path))


def open_tokenizer(path: Path, /) -> ToyEngine:
    return ToyEngine(path, **parse_toy_reference(path))


def identity(path: Path, _settings: Mapping[str, Any], /) -> dict[str, Any]:
    return ToyEngine(path, **parse_toy_reference(path)).identity()


def build() -> BackendBuild:
    return BackendBuild("", False)


def kernels_status() -> KernelStatus:
    return KernelStatus()


def parse_toy_reference(path: Path) -> dict[str, Any]:
    """Return the arguments of ToyTarget in a reference. Raises UsageError."""
    out: dict[str, Any] = {}
    for part in filter(None, str(path).partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        kind, low, high = RANGES.get(name, (str, 0.0, 0.0))
        try:
            out[name] = number = kind(value)
            good = isfinite(number) and low <= number <= high
        except (ValueError, TypeError):
            good = False
        if not good:
            known = ", ".join(f"{key} ({low:g} to {high:g})" for key, (_, low, high) in RANGES.items())
            raise UsageError(f"{path}: {part!r} is no setting; write toy:seed=3,noise=0.3, of {known}")
    if "eos" in out:
        out["eos"] = frozenset({out["eos"]})
    return out


class ToyEngine(ToyTarget):
    """A ToyTarget whose tokens are digits. path: the reference."""

    def __init__(self, path: Path = Path("toy:"), *, sessions: int = 1, **weights: Any) -> None:
        super().__init__(**{"n_vocab": 8, **weights})
        self.path = path
        self.name = str(path)
        self.description = f"toy model of {self.vocab.size} tokens"
        self.text = DigitTokenizer(self.vocab)
        self.weight_bytes = int(sum(weight.nbytes for weight in self._weights))
        self.settings: Mapping[str, Any] = {"threads": 1}
        # A row does not depend on the other rows of a pass.
        self.caps = replace(self.caps, max_sessions=sessions, exact=True)
        self.on_forward: ForwardCallback | None = None

    @property
    def _weights(self) -> tuple[Array, ...]:
        return self._mix, self._embed, self._head

    @cached_property
    def token_trie(self) -> TokenTrie:
        return TokenTrie([self.vocab.piece(token) for token in range(self.vocab.size)], self.vocab.eos)

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in self._weights))
        digest.update(repr(sorted(self.vocab.eos)).encode())
        return {"model": digest.hexdigest(), "engine": ENGINE, **self.settings}

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        began = perf_counter()
        outs = super().forward(batch, want)
        if self.on_forward is not None:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, len(batch[0][0].tokens), perf_counter() - began)
        return outs


class DigitTokenizer(Text):
    """Text of digits. Every other letter stands for a digit, too; white space is left out."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        letters = (letter for letter in typed.text("the text", text) if not letter.isspace())
        return [(ord(letter) - ord("0")) % self._vocab.size for letter in letters]

    def piece(self, token: int) -> bytes:
        return self._vocab.piece(token)

    def template(self, *, tools: bool = False) -> str:
        return ""

    def bos_and_eos(self) -> tuple[str, str]:
        return "", ""
