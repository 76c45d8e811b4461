"""The vocabulary of a model, as drafters and views read it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Vocab:
    """A model's vocabulary."""

    size: int  # rows of the output layer
    kind: str
    bos: int | None
    eos: frozenset[int]  # all tokens that end generation
    add_bos: bool
    add_eos: bool
    text: Callable[[int], bytes]  # a token's text as the model file stores it
    piece: Callable[[int], bytes]  # the bytes a token contributes to a text; empty for a control token

    def known(self, tokens: Iterable[int]) -> list[int]:
        """Return the tokens, with token 0 in place of those that only a larger vocabulary has."""
        return [token if token < self.size else 0 for token in tokens]

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 over the number of tokens and every token's text, padding included.
        Stored token ids are only read with the vocabulary they were written with."""
        digest = hashlib.sha256(self.size.to_bytes(8, "little"))
        for token in range(self.size):
            text = self.text(token)
            digest.update(len(text).to_bytes(4, "little") + text)  # the length makes the encoding unique
        return digest.hexdigest()
