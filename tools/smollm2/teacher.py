"""The real model in many conversations at once: each pass reads one token of every one of them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor

from tools.embedded import distil
from tools.embedded.network import Block, rotate


class Layer:
    """A block's weights, products of one input side by side, and its cache: (slots, room, key/value heads,
    head dimension)."""

    def __init__(self, block: Block, dtype: torch.dtype, slots: int, room: int) -> None:
        def joined(*names: str) -> Tensor:
            return torch.cat([block.get_submodule(name).weight for name in names]).to(dtype)

        self.attn_norm, self.ffn_norm = block.attn_norm.weight, block.ffn_norm.weight
        self.qkv, self.attn_output = joined("attn_q", "attn_k", "attn_v"), joined("attn_output")
        self.gate_up, self.ffn_down = joined("ffn_gate", "ffn_up"), joined("ffn_down")
        size = (slots, room, block.shape.kv_heads, block.shape.head_dim)
        self.keys, self.values = (
            torch.zeros(size, dtype=dtype, device=self.attn_norm.device) for _ in range(2)
        )


class Teacher:
    """A Llama of a GGUF file over `slots` sequences of up to `room` tokens. On a GPU in bfloat16, with the
    residual stream and the output matrix in float32; on a CPU in float32 throughout."""

    def __init__(self, path: Path, slots: int, room: int, device: torch.device) -> None:
        model = distil.load(path).requires_grad_(False).to(device)
        self.shape, self.room = model.shape, room
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.rows = torch.arange(slots, device=device)
        self.embedding, self.output_norm = model.token_embd.weight, model.output_norm.weight
        self.output = model.output.weight if isinstance(model, distil.Untied) else self.embedding
        self.cos, self.sin = model.cos[:room], model.sin[:room]
        self.layers = [Layer(block, self.dtype, slots, room) for block in model.blk]
        steps = torch.arange(slots + 1, device=device, dtype=torch.int32)
        self.group = self.shape.heads // self.shape.kv_heads
        self.query_begins, self.key_begins = steps * self.group, steps * room

    def attend(self, q: Tensor, layer: Layer, lengths: Tensor) -> Tensor:
        """q (slots, heads, head dimension) over the first `lengths` (slots,) tokens of each slot's cache."""
        slots, kv, size = len(q), self.shape.kv_heads, self.shape.head_dim
        if q.device.type == "cpu":
            mask = (torch.arange(self.room) < lengths[:, None])[:, None, None]
            heads = q.view(slots, kv, self.group, size)
            keys, values = layer.keys.transpose(1, 2), layer.values.transpose(1, 2)
            return F.scaled_dot_product_attention(heads, keys, values, attn_mask=mask).flatten(1)
        # FlashAttention's kernel for texts of different lengths reads the filled part of the cache only. The
        # heads that share keys are given to it as that many queries of one head.
        heads = q.view(slots, kv, self.group, size).transpose(1, 2).reshape(slots * self.group, kv, size)
        mixed = torch.ops.aten._flash_attention_forward(
            heads, layer.keys.view(-1, kv, size), layer.values.view(-1, kv, size),
            self.query_begins, self.key_begins, self.group, self.room, 0.0, False, False, seqused_k=lengths,
        )[0]  # fmt: skip
        return mixed.view(slots, self.group, kv, size).transpose(1, 2).reshape(slots, -1)

    def logits(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """The slots' next tokens (slots,), which stand at `positions` (slots,) -> (slots, tokens)."""
        shape, lengths = self.shape, (positions + 1).int()
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        rotated, width = shape.heads + shape.kv_heads, (shape.width,)
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            h = F.rms_norm(x, width, layer.attn_norm, shape.eps).to(self.dtype)
            heads = F.linear(h, layer.qkv).view(len(x), -1, shape.head_dim)
            turned = rotate(heads[:, :rotated], cos, sin).to(self.dtype)
            layer.keys[self.rows, positions] = turned[:, shape.heads :]
            layer.values[self.rows, positions] = heads[:, rotated:]
            mixed = self.attend(turned[:, : shape.heads].contiguous(), layer, lengths)
            x = x + F.linear(mixed, layer.attn_output)
            h = F.rms_norm(x, width, layer.ffn_norm, shape.eps).to(self.dtype)
            gate, up = F.linear(h, layer.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.ffn_down)
        return F.linear(F.rms_norm(x, width, self.output_norm, shape.eps), self.output)
