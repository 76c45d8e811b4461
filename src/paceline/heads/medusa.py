"""Medusa heads: small blocks on the target's last hidden state, one for each of the next tokens (Cai et al.
2024, arXiv:2401.10774). They share one output matrix over the draft vocabulary."""

from __future__ import annotations

from typing import Any

from paceline.heads.arrays import concatenate, silu
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import MakeLinear, Weights, linear
from paceline.heads.eagle import output_matrix


class MedusaHead:
    """The network: head i drafts the token at depth i + 1."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        self._blocks = [linear(weights, f"blocks.{i}.linear", make) for i in range(config.depth)]
        self._output = output_matrix(weights, make)

    def forward(self, hidden: Any) -> Any:
        """Return the logits [depth * rows, draft_vocab] of hidden states [rows, hidden], depth by depth."""
        return self._output(concatenate([hidden + silu(block(hidden)) for block in self._blocks], 0))
