"""The vocabulary of a model, as drafters and views read it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


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
