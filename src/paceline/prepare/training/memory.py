"""The memory that a training takes, estimated before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from paceline.hardware.probe import free_memory
from paceline.heads.config import HeadConfig
from paceline.prepare.training.losses import RANDOM_TOKENS
from paceline.prepare.training.plan import TrainingPlan
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import format_bytes

OPTIMIZER_BYTES = 16  # of a weight: itself, its gradient, and AdamW's two moments
LOGIT_COPIES = 4  # of a step: logits, their exponentials, and both gradients
WIDTHS = 24  # numbers of a token and layer that the backward pass needs, in hidden widths


def training_bytes(plan: TrainingPlan, config: HeadConfig, weights: Mapping[str, Any], embedding: Any) -> int:
    """Return the bytes of weights, embedding and one batch, without the target itself."""
    tokens, steps = plan.settings.batch_tokens, max(1, plan.options.depth)
    parameters = sum(int(weight.numel()) for weight in weights.values())
    vocab = config.draft_vocab
    if plan.kind in ("draft", "pard"):  # see losses.sampled_logits
        vocab = min(vocab, 3 * RANDOM_TOKENS)
    logits = LOGIT_COPIES * tokens * vocab * steps
    states = tokens * steps * (WIDTHS * config.shape.hidden + 4 * config.shape.feed_forward) * config.n_layers
    masks = tokens * tokens * (steps + 1)
    numbers = logits + states + masks + int(embedding.numel())
    return OPTIMIZER_BYTES * parameters + 4 * numbers


def require_memory(
    plan: TrainingPlan, config: HeadConfig, weights: Mapping[str, Any], embedding: Any, device: str
) -> int:
    """Return the estimated bytes. Raises UsageError if they are more than the device has free."""
    needed = training_bytes(plan, config, weights, embedding)
    free = torch.cuda.mem_get_info()[0] if device.startswith("cuda") else free_memory()
    if needed > free:
        raise UsageError(
            f"training needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free: "
            "smaller batches (--batch-tokens) or a smaller draft vocabulary (--draft-vocab) need less"
        )
    return needed
