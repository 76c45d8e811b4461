"""Several texts end to end in one row, of which each sees itself only."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor


class Packed:
    """A row of texts of these lengths, `longest` tokens each at most.

    room: of texts, the last ones empty, so that every batch has the same shapes on a GPU."""

    def __init__(self, lengths: Sequence[int], room: int, longest: int, device: torch.device) -> None:
        ends = np.cumsum([0, *lengths])
        positions = np.arange(ends[-1]) - np.repeat(ends[:-1], lengths)
        self.positions = torch.from_numpy(positions).to(device)
        self.ends, self.longest = ends.tolist(), longest
        filled = np.full(room + 1, ends[-1], np.int32)
        filled[: len(ends)] = ends
        self.begins = torch.from_numpy(filled).to(device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v and the result: (1, heads, tokens, head dimension)."""
        if q.device.type == "cpu":
            parts = [
                F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], is_causal=True)
                for a, b in pairwise(self.ends)
            ]
            return torch.cat(parts, 2)
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        mixed = torch.ops.aten._flash_attention_forward(
            q, k, v, self.begins, self.begins, self.longest, self.longest, 0.0, True, False
        )[0]
        return mixed.transpose(0, 1)[None]
