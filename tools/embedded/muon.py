"""Muon: momentum made orthogonal, for the matrices inside a transformer (Jordan et al. 2024).

Matrices of one shape are stacked, so that the Newton-Schulz iteration runs as a few batched products.
The update is scaled to AdamW's usual size (Liu et al. 2025, arXiv:2502.16982).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Without kernels for it, bfloat16 products are several times slower than float32's, not twice as fast.
FAST = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
MATMUL = torch.bfloat16 if FAST else torch.float32


def orthogonalize(g: Tensor, steps: int = 5) -> Tensor:
    """Nearest semi-orthogonal matrices to the stack `g` (n, rows, columns), rows <= columns, about."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16 if g.is_cuda else MATMUL)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


class Muon(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped here
    """Momentum (Nesterov) -> orthogonalize -> step; all parameters must be 2-D."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            stacks: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is None:  # it had no part in this step
                    continue
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(buffer, group["momentum"])
                flat = update if p.shape[0] <= p.shape[1] else update.mT
                stacks[(flat.shape[0], flat.shape[1])].append((p, flat))
            for (_, columns), members in stacks.items():
                scale = group["lr"] * 0.2 * columns**0.5
                for (p, _), update in zip(
                    members, orthogonalize(torch.stack([m[1] for m in members])), strict=True
                ):
                    p.mul_(1 - group["lr"] * group["decay"])
                    p.sub_((update if p.shape == update.shape else update.mT).to(p.dtype), alpha=scale)
