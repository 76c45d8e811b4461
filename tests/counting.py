"""Toy targets that count passes and tokens, or overwrite their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.backends.toy import Array, ToyForward, ToySession, ToyTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import DraftTree


class Counting(ToyTarget):
    """Counts passes and computed tokens."""

    passes = computed = 0

    def after(self, state: Any, token: int) -> Any:
        self.computed += 1
        return super().after(state, token)

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        self.passes += 1
        return super().forward(batch, want)


class Transient(Counting):
    """A toy whose next forward overwrites its rows, as a real backend's does."""

    rows: tuple[Array, ...] = ()

    def logits(self, state: Any) -> Array:
        row = super().logits(state)
        self.rows += (row,)
        return row

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        for row in self.rows:
            row[:] = np.nan
        self.rows = ()
        return super().forward(batch, want)
