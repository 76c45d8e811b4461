"""A grammar of a few tokens: a finite automaton, given as a table; and drafters that do not heed it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.speculative.interfaces import Budget, Grammar
from paceline.speculative.sampling import Mask
from paceline.speculative.tree import DraftTree
from parrot import WrappedDrafter

# State -> the tokens allowed there, and where each leads. In the last one the text has ended.
TABLE: Mapping[int, Mapping[int, int]] = {
    0: {0: 1, 1: 1},
    1: {1: 2, 2: 0, 3: 0},
    2: {2: 2, 3: 3},
    3: {0: 3, 1: 3, 2: 3, 3: 3},
}


class Automaton(Grammar):
    """A grammar over tokens 0 to 3. emitted: what it was told."""

    def __init__(self, table: Mapping[int, Mapping[int, int]] = TABLE) -> None:
        self._table = table
        self._state = 0
        self.emitted: list[int] = []

    def mask(self, path: Sequence[int]) -> Mask:
        state: int | None = self._state
        for token in path:
            state = None if state is None else self._table[state].get(token)
        out = np.zeros(4, dtype=np.bool_)
        if state is not None:
            out[list(self._table[state])] = True
        return out

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._state = self._table[self._state][token]
            self.emitted.append(token)


class Blind(WrappedDrafter):
    """A drafter that is not told of the grammar, so that some of what it draws is forbidden."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        return super().propose([(memory, replace(budget, grammar=None)) for memory, budget in batch])
