"""Passes of few rows as one program each (`torch.compile`; on a GPU a CUDA graph).

Between the products of a small pass PyTorch and Python take as long as the products do. To a compiled pass
the cache is as long as it has room, so that its length is not part of the program; what is behind the text
is seen by nobody.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from paceline.engines.hf.kind import Kind
from paceline.engines.hf.session import Rows
from paceline.engines.hf.strip import Strips

MOST = 32  # rows


class Compiled:
    def __init__(self, model: Any, kind: Kind, device: str) -> None:
        self._kind, self._device = kind, device

        def run(tokens: Any, positions: Any, mask: Any, cache: Any) -> Any:
            out = model(
                input_ids=tokens, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True
            )
            return out.logits

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own parts are deprecated when they are imported
            import torch._dynamo
        graph = device.startswith("cuda")
        self._run = torch.compile(run, mode="reduce-overhead" if graph else None)

    def takes(self, rows: Rows) -> bool:
        """A cache that has been written to, and few rows."""
        return self._kind.masks and 0 < len(rows.tokens) <= MOST and rows.start > 0

    def logits(self, cache: Strips, rows: Rows) -> Any:
        """[rows, n_vocab], valid until the next pass."""
        n = len(rows.tokens)
        room = cache.make_room(rows.start + n)
        tokens = torch.tensor([rows.tokens], device=self._device)
        positions = torch.tensor([rows.positions], device=self._device)
        places = torch.arange(rows.start, rows.start + n, device=self._device)
        mask = self._kind.filled_mask(rows, room, self._device)
        if n > 1:  # one program for all numbers of rows; the one for a single row is another
            for tensor, dimension in ((tokens, 1), (positions, 1), (places, 0)):
                torch._dynamo.mark_dynamic(tensor, dimension)
            for one in mask.values() if isinstance(mask, dict) else [mask]:
                torch._dynamo.mark_dynamic(one, 2)
        with cache.written_at(places):
            out = self._run(tokens, positions, mask, cache)
        cache.grow(rows.start + n)
        return out[0]
