"""Passes of a model over several sessions, which a mask separates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

from paceline.backends.transformers.kind import ArchitectureTraits
from paceline.backends.transformers.session import HfSession, PassInput
from paceline.backends.transformers.strip import BatchedCache
from paceline.speculative.tree import DraftTree

MAX_FUSED_ROWS = 1024  # rows of several sessions in one pass


@dataclass
class PendingForward:
    """A session's part of a forward.
    n_prefill: tokens to prefill. n_prefilled: tokens among these that earlier passes computed.
    logits: [n_outputs, n_vocab], once computed."""

    session: HfSession
    tree: DraftTree | int
    rows: PassInput
    n_prefill: int
    n_prefilled: int = 0
    logits: Any = None


def compute(model: Any, kind: ArchitectureTraits, due: Sequence[PendingForward]) -> None:
    """Compute all sessions in one pass if a mask can separate them, else one by one."""
    group, n = list[PendingForward](), 0
    for one in due:
        if group and (not kind.supports_custom_masks or n + len(one.rows.tokens) > MAX_FUSED_ROWS):
            _pass(model, kind, group)
            group, n = [], 0
        group.append(one)
        n += len(one.rows.tokens)
    if group:
        _pass(model, kind, group)


def _pass(model: Any, kind: ArchitectureTraits, due: Sequence[PendingForward]) -> None:
    rows = [one.rows for one in due]
    caches = [one.session.slot.cache for one in due]
    if kind.supports_rollback:
        for cache, one in zip(caches, rows, strict=True):
            cache.truncate(one.start)  # a view may have written behind the text
    counts = [len(one.tokens) for one in rows]
    tokens = [token for one in rows for token in one.tokens]
    given: dict[str, Any] = {
        "cache": caches[0] if len(caches) == 1 else BatchedCache(caches, counts),
        "use_cache": True,
    }
    device = kind.device
    if (mask := kind.mask(rows)) is not None:
        given["attention_mask"] = mask
    if kind.takes_positions:
        given["position_ids"] = torch.tensor([[at for one in rows for at in one.positions]], device=device)
    ends = output_ends = list(accumulate(counts))
    if kind.takes_few:  # compute the logits of output rows only, and of at least one row
        output_ends = list(accumulate(one.n_outputs for one in rows))
        few = [row for one, end in zip(rows, ends, strict=True) for row in range(end - one.n_outputs, end)]
        given["logits_to_keep"] = torch.tensor(few or [ends[-1] - 1], device=device)
    out = model(input_ids=torch.tensor([tokens], device=device), **given)
    for each, last in zip(due, output_ends, strict=True):
        each.logits = out.logits[0, last - each.rows.n_outputs : last]
