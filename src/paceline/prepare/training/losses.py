"""Losses of draft heads against the target's own distribution."""

from __future__ import annotations

from typing import Any

import torch


def soft_cross_entropy(logits: Any, ids: Any, p: Any, weight: Any) -> Any:
    """Return the mean of -sum p log q over rows, by weight.
    logits: [rows, draft_vocab]. ids, p: [rows, k]. weight: [rows]."""
    logq = logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)
    return ((p * -logq).sum(1) * weight).sum() / weight.sum().clamp(min=1.0)


def total_variation(logits: Any, ids: Any, p: Any, weight: Any) -> Any:
    """Return the mean of 1 - sum min(p, q), the rate at which sampled drafts are refused (Leviathan et al.
    2023, arXiv:2211.17192, theorem 3.5)."""
    q = (logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)).exp()
    return ((1.0 - torch.minimum(p, q).sum(1)) * weight).sum() / weight.sum().clamp(min=1.0)


def head_loss(logits: Any, ids: Any, p: Any, weight: Any, variation: float) -> Any:
    """Return (1 - variation) * cross-entropy + variation * total variation."""
    loss = (1.0 - variation) * soft_cross_entropy(logits, ids, p, weight)
    if variation > 0.0:
        loss = loss + variation * total_variation(logits, ids, p, weight)
    return loss
