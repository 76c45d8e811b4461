"""Losses of draft heads against the target's own distribution."""

from __future__ import annotations

import math
from typing import Any

import torch

RANDOM_TOKENS = 4096  # in the loss of a draft model, beside the likely ones


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


def sampled_logits(outputs: Any, matrix: Any, ids: Any) -> tuple[Any, Any]:
    """Return logits [rows, m] of the tokens in `ids` [rows, k] and of random others, and the places of `ids`
    among them. A random token stands for all that are not there, so the log of how many is added to its logit
    (Jean et al. 2015, arXiv:1412.2007). outputs: [rows, width]. matrix: [n_vocab, width]."""
    wanted = ids.unique()
    others = torch.randperm(len(matrix), device=wanted.device)[: len(wanted) + RANDOM_TOKENS]
    others = others[torch.isin(others, wanted, invert=True)][:RANDOM_TOKENS]
    logits = outputs @ matrix[torch.cat([wanted, others])].T
    if len(others):
        left = torch.zeros(logits.shape[1], device=logits.device)
        left[len(wanted) :] = math.log((len(matrix) - len(wanted)) / len(others))
        logits = logits + left
    return logits, torch.searchsorted(wanted, ids)


def head_loss(logits: Any, ids: Any, p: Any, weight: Any, variation: float) -> Any:
    """Return (1 - variation) * cross-entropy + variation * total variation."""
    loss = (1.0 - variation) * soft_cross_entropy(logits, ids, p, weight)
    if variation > 0.0:
        loss = loss + variation * total_variation(logits, ids, p, weight)
    return loss
