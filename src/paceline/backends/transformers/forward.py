"""The output of a pass for one session."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.backends.common import PassOutput
from paceline.speculative.sampling import (
    Mask,
    Sampling,
    TokenDistribution,
    filter_top_k,
    require_numbers,
    target_distribution,
)


class HfForward(PassOutput):
    """Rows that are copied from the device on demand."""

    _best: list[int] | None = None

    def top_k(self, rows: range, k: int) -> NDArray[np.int64] | None:
        begin = rows.start - self._first
        return top_k_rows(self._rows[begin : begin + len(rows)], k) if k and rows else None

    def argmax(self, row: int) -> int:
        at = self._place(row)
        if self._best is None:  # of all rows at once, on the device
            best = self._rows.argmax(-1)
            values = self._rows.gather(-1, best[:, None])[:, 0].float()
            self._best, self._values = best.tolist(), values.cpu().numpy()
        require_numbers(self._values[at])
        return self._best[at]

    def target_distribution(
        self, row: int, settings: Sampling, history: Sequence[int], mask: Mask | None = None
    ) -> TokenDistribution:
        candidates = None
        if mask is None and not settings.edits_logits and self._rows.device.type != "cpu":
            candidates = filtered_candidates(self._rows[self._place(row)], settings)
        if candidates is None:
            return super().target_distribution(row, settings, history, mask)
        ids, values = candidates
        require_numbers(values.max())
        filtered = target_distribution(values, settings, ())
        return TokenDistribution(ids[filtered.ids], filtered.p)

    def logits(self, row: int) -> NDArray[np.float32]:
        out: NDArray[np.float32] = self._rows[self._place(row)].float().cpu().numpy()
        return out

    def top_logprobs(self, rows: range, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k likeliest tokens of the rows and their log-probabilities, computed on the device."""
        begin = self._place(rows.start)
        self._place(rows.stop - 1)
        logits = self._rows[begin : begin + len(rows)].float()
        ids = top_k_rows(logits, k)
        chosen = logits.gather(-1, torch.from_numpy(ids).to(logits.device))
        return ids, (chosen - logits.logsumexp(-1, keepdim=True)).cpu().numpy()


def filtered_candidates(row: Any, settings: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float32]] | None:
    """Return the tokens of a row [n_vocab] that pass the first filter, and their logits.
    Return None if the settings need the whole row."""
    if settings.reads_whole_row and not settings.greedy:
        return None
    k = 1 if settings.greedy else settings.top_k
    if 0 < k < len(row):
        ids = stable_top_k(row, k)
    elif settings.min_p > 0.0 and settings.typical_p >= 1.0 and settings.top_p >= 1.0:
        exact = row.double()
        ids = (exact >= exact.max() + math.log(settings.min_p)).nonzero()[:, 0]
    else:
        return None
    return ids.cpu().numpy(), row[ids].float().cpu().numpy()


def top_k_rows(rows: Any, k: int) -> NDArray[np.int64]:
    """Return the top-k ids [rows, k], the largest logit first, and of equal logits the lowest id."""
    if rows.device.type == "cpu":
        return np.stack([filter_top_k(row, k) for row in rows.float().numpy()])
    return np.asarray(stable_top_k(rows, k).cpu().numpy())


def stable_top_k(rows: Any, k: int) -> Any:
    """Return the top-k ids [..., k]. `torch.topk` has no order of equal logits."""
    return rows.sort(dim=-1, descending=True, stable=True).indices[..., :k]
