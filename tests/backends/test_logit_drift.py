"""Logit drift with the shape of a pass, measured without the code that it judges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.backends.logit_drift import batch_logit_drift, teacher_forced_logits
from paceline.backends.toy import ToyForward, ToySession, ToyTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import DraftTree

PROMPT = [1, 2, 3]
TEXT = [4, 5, 6, 7, 0, 1, 2, 3]


def plain_rows(target: ToyTarget, tokens: Sequence[int]) -> np.ndarray:
    rows, state = [], None
    for token in tokens[:-1]:
        state = target.after(state, token)
        rows.append(target.logits(state))
    return np.stack(rows)


@pytest.mark.parametrize("n", [1, 2, 4, 20])
def test_teacher_forcing_gives_the_rows_of_plain_decoding_in_any_shape(n: int) -> None:
    target, tokens = ToyTarget(), [*PROMPT, *TEXT]
    np.testing.assert_array_equal(teacher_forced_logits(target, tokens, 3, n), plain_rows(target, tokens)[2:])


class Rounded(ToyForward):
    def logits(self, row: int) -> np.ndarray:
        # Passes of several rows are rounded to eighths.
        exact = super().logits(row)
        return np.round(exact * 8) / 8 if len(self._states) - self._first > 1 else exact


class RoundedTarget(ToyTarget):
    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        outs = super().forward(batch, want)
        for out in outs:
            out.__class__ = Rounded
        return outs


def test_noise_is_the_rounding_of_passes_with_several_rows() -> None:
    noise = batch_logit_drift(RoundedTarget(), [*PROMPT, *TEXT], 5)
    assert 0.05 < noise <= 0.125
    assert batch_logit_drift(RoundedTarget(), [*PROMPT, *TEXT], 1) == 0.0


def test_the_passes_that_noise_is_measured_in_are_no_larger_than_drafted_ones() -> None:
    """A prompt's are, and engines choose their kernels by it."""
    target, sizes = ToyTarget(), list[int]()
    forward = target.forward

    def noting(batch: list[tuple[ToySession, DraftTree | int]], want: RequiredOutputs) -> list[ToyForward]:
        ((session, tree),) = batch
        sizes.append(tree if isinstance(tree, int) else session.pending_tokens + 1 + len(tree))
        return forward(batch, want)

    target.forward = noting  # type: ignore[method-assign, assignment]
    for n in (3, 12):
        sizes.clear()
        batch_logit_drift(target, TEXT * 100, n)
        assert set(sizes) >= {1, n}
        assert max(sizes) == n
