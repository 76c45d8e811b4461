"""A request's grammar as those who draft for a batch see it: where it fails, that is its request's matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.speculative.arrays import Mask
from paceline.speculative.interfaces import Grammar


class SafeGrammar:
    """`grammar`, of so many tokens. error: what went wrong in it, from when on nothing may follow."""

    def __init__(self, grammar: Grammar, n_vocab: int) -> None:
        self._grammar, self._n_vocab = grammar, n_vocab
        self.error: Exception | None = None

    def mask(self, path: Sequence[int]) -> Mask:
        if self.error is None:
            try:
                return self._grammar.mask(path)
            except Exception as error:
                self.error = error
        return np.zeros(self._n_vocab, dtype=np.bool_)

    def commit(self, tokens: Sequence[int]) -> None:
        self._grammar.commit(tokens)
