"""Medusa heads: small blocks on the target's last hidden state, one for each of the next tokens (Cai et al.
2024, arXiv:2401.10774). They share one output matrix over the draft vocabulary, or each has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import concatenate, silu
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import MakeLinear, Product, Weights, linear
from paceline.heads.eagle import output_matrix


class MedusaHead:
    """The network: head i drafts the token at depth i + 1."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        heads = range(config.depth)
        if "blocks.0.0.linear.weight" in weights:  # the authors' files
            self._blocks = [
                [linear(weights, f"blocks.{i}.{j}.linear", make) for j in range(config.n_layers)]
                for i in heads
            ]
            self._outputs = [linear(weights, f"lm_head.{i}", make) for i in heads]
        else:
            self._blocks = [[linear(weights, f"blocks.{i}.linear", make)] for i in heads]
            self._outputs = [output_matrix(weights, make)]

    def forward(self, hidden: Any) -> Any:
        """Return the logits [depth * rows, draft_vocab] of hidden states [rows, hidden], depth by depth."""
        states = [self._state(hidden, blocks) for blocks in self._blocks]
        if len(self._outputs) == 1:
            return self._outputs[0](concatenate(states, 0))
        outputs = zip(states, self._outputs, strict=True)
        return concatenate([output(state) for state, output in outputs], 0)

    def _state(self, hidden: Any, blocks: Sequence[Product]) -> Any:
        for block in blocks:
            hidden = hidden + silu(block(hidden))
        return hidden
