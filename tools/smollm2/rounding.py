"""A network that computes with its weights as Q4_0 will hold them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

BLOCK = 32  # weights that share a scale


def q4_0(weight: Tensor) -> Tensor:
    """What comes back of float32 weights (rows, columns): ggml's quantize_row_q4_0_ref."""
    blocks = weight.reshape(-1, BLOCK)
    peak = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = peak / -8
    steps = torch.where(scale == 0, 0.0, blocks / scale)
    levels = (steps + 8.5).trunc().clamp(0, 15) - 8
    return (levels * scale.half().float()).view(weight.shape)


@contextmanager
def rounded(network: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Inside, the matrices are rounded: gradients are taken there. Behind it they are what they were."""
    matrices = [p for p in network.parameters() if p.ndim == 2] if enabled else []
    kept = [p.data for p in matrices]
    for p in matrices:
        p.data = q4_0(p.data)
    try:
        yield
    finally:
        for p, data in zip(matrices, kept, strict=True):
            p.data = data
