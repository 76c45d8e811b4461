"""A reduced draft vocabulary: the output matrix of a head for the tokens that are likely to occur.

With a vocabulary of 150,000 tokens and more the output matrix is most of a head's step. These are the
tokens with the lowest ids, which byte-pair encoding learned first because they are frequent, and all that
occurred in texts (as the sparse head of exllamav3). Output is exact, since the target verifies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.decoder import Linear

SIZE = 16_384  # tokens with the lowest ids
MIN_VOCAB = 2 * SIZE  # from which a reduced vocabulary is worth it
GROWTH = 256  # tokens of texts that are collected before their rows join one matrix
# Full logits are computed while fewer of a text's tokens were in the vocabulary.
MIN_COVERAGE, COVERAGE_WEIGHT = 0.9, 1 / 256  # of the last tokens, the weight of the newest

Rows = NDArray[np.float32]


class ReducedVocabulary:
    """rows: returns rows [n, width] of the output matrix. linear: makes a product with a matrix, or returns
    None if numpy is as fast."""

    def __init__(
        self, n_vocab: int, rows: Callable[[NDArray[np.int64]], Rows], linear: Callable[[Rows], Any]
    ) -> None:
        self._rows = rows
        self._linear: Callable[[Rows], Any] = lambda weight: linear(weight) or Linear(weight)
        self.ids = np.arange(min(SIZE, n_vocab), dtype=np.int64)
        self._known = np.zeros(n_vocab, np.bool_)
        self._known[self.ids] = True
        self._parts = [self._linear(rows(self.ids))]
        self._new: list[int] = []  # tokens whose rows are in the last part, which is still small
        self.coverage = 1.0

    def observe(self, tokens: Iterable[int], *, generated: bool) -> None:
        """Take up the tokens of a text. generated: they count for the coverage."""
        found = []
        for token in tokens:
            known = bool(self._known[token])
            if generated:
                self.coverage += COVERAGE_WEIGHT * (known - self.coverage)
            if not known:
                self._known[token] = True
                found.append(token)
        if found:
            self._add(found)

    def _add(self, tokens: list[int]) -> None:
        if self._new:
            self._parts.pop()
        self._new += tokens
        rows = self._rows(np.asarray(self._new, np.int64))
        self._parts.append(self._linear(rows))
        self.ids = np.concatenate([self.ids, np.asarray(tokens, np.int64)])
        if len(self._new) >= GROWTH:
            self._new = []

    @property
    def suffices(self) -> bool:
        return self.coverage >= MIN_COVERAGE

    def logits(self, states: Rows) -> Rows:
        """Return the logits [n, tokens] of states [n, width], after the final norm."""
        return np.concatenate([part(states) for part in self._parts], axis=1)
