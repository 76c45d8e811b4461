"""The Llama architecture in torch, as small as training needs it (Touvron et al. 2023, arXiv:2302.13971)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor, nn

from tools.embedded.packed import Packed


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama model, by their GGUF names in `export.py`."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocab: int = 8192
    context: int = 2048
    rope_base: float = 10_000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


TARGET = Shape(width=384, blocks=6, heads=6, kv_heads=2, feed_forward=1024)
DRAFT = Shape(width=128, blocks=3, heads=4, kv_heads=2, feed_forward=384)


class RMSNorm(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Root-mean-square normalisation with a learned scale (Zhang & Sennrich 2019)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions over (first half, second half) pairs; export permutes to llama.cpp's pairs."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Past:
    """Keys and values of one block for the tokens so far, with room for `room` of them."""

    def __init__(self, rows: int, shape: Shape, room: int, dtype: torch.dtype) -> None:
        size = (rows, shape.kv_heads, room, shape.head_dim)
        self.keys, self.values = torch.empty(size, dtype=dtype), torch.empty(size, dtype=dtype)
        self.tokens = 0

    def add(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Those of all tokens, the new ones last; each (rows, heads, tokens, head dimension)."""
        end = self.tokens + keys.shape[2]
        self.keys[:, :, self.tokens : end], self.values[:, :, self.tokens : end] = keys, values
        self.tokens = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Grouped-query attention and SwiGLU, each added to the residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv = shape.kv_heads * shape.head_dim
        self.attn_norm = RMSNorm(shape.width, shape.eps)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, kv, bias=False)
        self.attn_v = nn.Linear(shape.width, kv, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_norm = RMSNorm(shape.width, shape.eps)
        self.ffn_gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, past: Past | None = None, packed: Packed | None = None
    ) -> Tensor:
        batch, length, _ = x.shape
        h = self.attn_norm(x)
        q, k, v = (part(h).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
                   for part in (self.attn_q, self.attn_k, self.attn_v))  # fmt: skip
        q, k = rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype)
        if past:
            k, v = past.add(k, v)
        group = self.shape.heads // self.shape.kv_heads
        if length == 1:  # the heads of a group side by side over the keys they share
            q = q.reshape(batch, self.shape.kv_heads, group, -1)
        else:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if packed:
            mixed = packed.attend(q, k, v)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        mixed = mixed.reshape(batch, self.shape.heads, length, -1).transpose(1, 2)
        x = x + self.attn_output(mixed.reshape(batch, length, -1))
        h = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Token ids (batch, length) -> logits (batch, length, vocab); the embedding is also the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.output_norm = RMSNorm(shape.width, shape.eps)
        half = shape.head_dim // 2
        inverse = shape.rope_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), inverse)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                nn.init.normal_(weight, std=0.02 if "embd" in name else shape.width**-0.5 / 1.5)
            # a block that starts as the identity trains more steadily
            if name.endswith(("attn_output.weight", "ffn_down.weight")):
                nn.init.zeros_(weight)

    def hidden(self, ids: Tensor, past: list[Past] | None = None, packed: Packed | None = None) -> Tensor:
        """States (batch, length, width) before the output matrix.

        With `past` (one a block) the ids come after its tokens: any number of the first, then one at a time.
        With `packed` they are one row, of texts of their own.
        """
        begin = past[0].tokens if past else 0
        at = packed.positions if packed else slice(begin, begin + ids.shape[1])
        cos, sin = self.cos[at], self.sin[at]
        x = self.token_embd(ids)
        for i, block in enumerate(self.blk):
            x = block(x, cos, sin, past[i] if past else None, packed)
        return self.output_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.token_embd.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))
