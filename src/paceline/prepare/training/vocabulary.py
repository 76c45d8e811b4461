"""The tokens that a head can draft: the most frequent ones of answers (FR-Spec, arXiv:2502.14856)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


class DraftVocabulary:
    """The tokens that a head drafts, and their places in it."""

    def __init__(self, ids: NDArray[np.int64], n_vocab: int) -> None:
        self.ids, self.n_vocab = ids, n_vocab
        self.places = np.full(n_vocab, -1, np.int64)
        self.places[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_whole(self) -> bool:
        return len(self.ids) == self.n_vocab

    @classmethod
    def of_answers(cls, answers: Iterable[NDArray[np.int32]], n_vocab: int, size: int) -> DraftVocabulary:
        """Return the `size` most frequent tokens of answers, in the order of their ids; others fill it up."""
        counts = np.zeros(n_vocab, np.int64)
        for tokens in answers:
            np.add.at(counts, tokens.astype(np.int64), 1)
        order = np.argsort(-counts, kind="stable")
        return cls(np.sort(order[: min(size, n_vocab)]), n_vocab)
