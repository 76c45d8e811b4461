"""Passes of a model over several sessions, which a mask separates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from paceline.backends.transformers.kind import ArchitectureTraits
from paceline.backends.transformers.session import HfSession, PassInput
from paceline.backends.transformers.strip import BatchedCache
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import DraftTree

MAX_FUSED_ROWS = 1024  # rows of several sessions in one pass


@dataclass
class PendingForward:
    """A session's part of a forward.

    n_prefill: tokens to prefill, from position `begin` on.
    n_prefilled: tokens among these that earlier passes computed, with the hidden states `earlier`.
    logits, hidden: [n_outputs, n_vocab] and [rows, layers, width], once computed."""

    session: HfSession
    tree: DraftTree | int
    rows: PassInput
    n_prefill: int
    begin: int
    n_prefilled: int = 0
    earlier: Sequence[Any] = ()
    logits: Any = None
    hidden: Any = None


def compute(
    model: Any, kind: ArchitectureTraits, due: Sequence[PendingForward], want: RequiredOutputs
) -> None:
    """Compute all sessions in one pass if a mask can separate them, else one by one."""
    if kind.single_token_passes:
        for one in due:
            _token_by_token(model, kind, one, want)
        return
    group, n = list[PendingForward](), 0
    for one in due:
        if group and (not kind.supports_custom_masks or n + len(one.rows.tokens) > MAX_FUSED_ROWS):
            _pass(model, kind, group, want)
            group, n = [], 0
        group.append(one)
        n += len(one.rows.tokens)
    if group:
        _pass(model, kind, group, want)


def _token_by_token(model: Any, kind: ArchitectureTraits, due: PendingForward, want: RequiredOutputs) -> None:
    """Compute a session's tokens in passes of one token."""
    rows = due.rows
    parts = [replace(due, rows=row) for row in rows.single_tokens()]
    for part in parts:
        _pass(model, kind, [part], want)
    due.logits = torch.cat([part.logits for part in parts])
    due.hidden = torch.cat([part.hidden for part in parts]) if want.layers else None


def _pass(model: Any, kind: ArchitectureTraits, due: Sequence[PendingForward], want: RequiredOutputs) -> None:
    rows = [one.rows for one in due]
    caches = [one.session.slot.cache for one in due]
    if kind.rollback == "free":
        for cache, one in zip(caches, rows, strict=True):
            cache.truncate(one.start)  # a view may have written behind the text
    counts = [len(row.tokens) for row in rows]
    tokens = [token for row in rows for token in row.tokens]
    whole = caches[0] if len(caches) == 1 else BatchedCache(caches, counts)
    given: dict[str, Any] = {"cache": whole, "use_cache": True}
    device = kind.device
    if (mask := kind.mask(rows)) is not None:
        given["attention_mask"] = mask
    if kind.takes_positions:
        given["position_ids"] = torch.tensor([[at for row in rows for at in row.positions]], device=device)
    ends = list(accumulate(counts))
    output_ends = ends
    if kind.takes_few:  # compute the logits of output rows only, and of at least one row
        output_ends = list(accumulate(row.n_outputs for row in rows))
        few = [row for one, end in zip(rows, ends, strict=True) for row in range(end - one.n_outputs, end)]
        given["logits_to_keep"] = torch.tensor(few or [ends[-1] - 1], device=device)
    if want.layers:
        given["output_hidden_states"] = list(want.layers)
    out = model(input_ids=torch.tensor([tokens], device=device), **given)
    for each, last, end, n in zip(due, output_ends, ends, counts, strict=True):
        each.logits = out.logits[0, last - each.rows.n_outputs : last]
        if want.layers:
            layers = [out.hidden_states[layer][0, end - n : end] for layer in want.layers]
            each.hidden = torch.stack(layers, dim=1)
