"""A toy whose logits are not numbers after one of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.backends.toy import Array, ToyTarget

MARK = 2.0  # in a state: no tanh comes to it


def _one(value: float) -> Callable[[Array], Array]:
    def spoil(row: Array) -> Array:
        row[1] = value
        return row

    return spoil


# What is wrong, as messages say it -> what becomes of a row.
FAULTS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "NaN everywhere": ("NaN", lambda row: row * np.nan),
    "one NaN": ("NaN", _one(np.nan)),
    "one infinity": ("infinity", _one(np.inf)),
    "nothing possible": ("minus infinity for every token", lambda row: np.full_like(row, -np.inf)),
}


class FaultyToy(ToyTarget):
    """fault: a name in FAULTS. after: the token whose rows have it; None: every row."""

    def __init__(self, n_vocab: int = 8, *, fault: str, after: int | None = None, **more: Any) -> None:
        super().__init__(n_vocab, **more)
        self._spoil, self._bad = FAULTS[fault][1], after

    def after(self, state: Array | None, token: int) -> Array:
        h = super().after(state, token)
        if self._bad in (None, token):
            h[-1, 0] = MARK
        return h

    def logits(self, state: Array) -> Array:
        row = super().logits(state)
        return self._spoil(row) if state[-1, 0] == MARK else row
