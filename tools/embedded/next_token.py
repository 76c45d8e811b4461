"""A block that guesses the token after next (MTP), as llama.cpp runs Qwen 3.5's `nextn` block.

At position p it reads the embedding of token p and the trunk's normed state at p - 1, and guesses token p + 1
(DeepSeek-V3, arXiv:2412.19437, section 2.2). To guess further it reads its own state in place of the trunk's:
it is trained on that as EAGLE-3 is (Li et al. 2025, arXiv:2503.01840), each later position seeing the keys
of the trunk's positions up to where its chain starts, and its own chain's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor, nn

from tools.embedded.network import RMSNorm

DEPTH = 3  # steps of a chain in training


class NextTokenHead(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The block and what it reads. block: one of gated attention and a feed-forward layer."""

    def __init__(self, width: int, eps: float, block: Any) -> None:
        super().__init__()
        self.enorm, self.hnorm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.block = block
        self.shared_head_norm = RMSNorm(width, eps)

    def forward(
        self, embedded: Tensor, hidden: Tensor, starts: Tensor, depth: int, cos: Tensor, sin: Tensor
    ) -> list[Tensor]:
        """Return the normed states (batch, starts, width) of each step of chains: step s of a chain is at
        its start + s. embedded, hidden: (batch, length, width), of the tokens and of the trunk there."""
        mixer, before = self.block.mixer, F.pad(hidden[:, :-1], (0, 0, 1, 0))
        rows = self._read(embedded, before)
        normed = self.block.attn_norm(rows)
        keys, values = mixer.keys_values(normed, cos, sin)
        seen = torch.arange(embedded.shape[1])[None] <= starts[:, None]
        rows, normed, at = rows[:, starts], normed[:, starts], starts
        own, states = list[tuple[Tensor, Tensor]](), list[Tensor]()
        for step in range(depth):
            if step:
                at = starts + step
                rows = self._read(embedded[:, at], states[-1])
                normed = self.block.attn_norm(rows)
                own.append(mixer.keys_values(normed, cos[at], sin[at]))
            q, gate = mixer.queries(normed, cos[at], sin[at])
            rows = rows + mixer.output(attend(q, keys, values, seen, own), gate)
            states.append(self.shared_head_norm(rows + self.block.ffn(self.block.ffn_norm(rows))))
        return states

    def _read(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))


def attend(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, own: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return (batch, heads, starts, head): attention to the `seen` keys, and to those of the chain of each
    query. keys, values: (batch, key heads, length, head); of `own`, one a query."""
    group = q.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    own = [(k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)) for k, v in own]
    q = q * q.shape[-1] ** -0.5
    scores = [(q @ keys.mT).masked_fill(~seen, -torch.inf), *((q * k).sum(-1, keepdim=True) for k, _ in own)]
    p = torch.cat(scores, -1).softmax(-1)
    mixed = p[..., : keys.shape[2]] @ values
    for i, (_, v) in enumerate(own):
        mixed = mixed + p[..., keys.shape[2] + i, None] * v
    return mixed


def chain_starts(length: int, first: int = 0, stride: int = 1) -> Tensor:
    """Return the starts of chains of DEPTH tokens in a text, as many for each `first` below the stride."""
    return first + stride * torch.arange((length - DEPTH - stride + 1) // stride + 1)
