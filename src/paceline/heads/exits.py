"""Heads on a target's first layers: each drafted token is read by these layers, and then by an adapter.

Early exits have a block and a norm before the target's output matrix, at several depths. Kangaroo (Liu et al.
2024, arXiv:2404.18911) has an attention layer without a feed-forward block, whose cache covers the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import rms_norm, silu
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import Cache, MakeLinear, Rotary, Weights, decoder_layers, linear
from paceline.heads.eagle import output_matrix


class ExitAdapter:
    """A residual block of low rank and a norm, on the hidden states of one layer."""

    def __init__(self, weights: Weights, prefix: str, eps: float, make: MakeLinear | None) -> None:
        self._input_norm, self._norm = weights[f"{prefix}input_norm.weight"], weights[f"{prefix}norm.weight"]
        self._down, self._up = (linear(weights, f"{prefix}{name}", make) for name in ("down", "up"))
        self._eps = eps

    def __call__(self, hidden: Any) -> Any:
        block = self._up(silu(self._down(rms_norm(hidden, self._input_norm, self._eps))))
        return rms_norm(hidden + block, self._norm, self._eps)


class ExitsHead:
    """Adapters at several layers of the target, with one output matrix over the draft vocabulary."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        eps, places = config.shape.eps, range(len(config.layer_ids))
        self._adapters = [ExitAdapter(weights, f"exits.{i}.", eps, make) for i in places]
        self._output = output_matrix(weights, make)

    def logits(self, hidden: Any, place: int) -> Any:
        """Return logits [rows, draft_vocab] from hidden states [rows, width] of the exit layer `place`.
        They are divided by the exit's temperature, by which the top probability is an acceptance rate."""
        out = self._output(self._adapters[place](hidden))
        return out / self.config.exits[place].temperature if self.config.exits else out


class KangarooHead:
    """The network. Row p takes the hidden state of token p, and predicts the token behind it."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config, self._rotary = config, Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._norm, self._output = weights["norm.weight"], output_matrix(weights, make)

    def extend(self, hidden: Any, positions: Any, caches: Sequence[Cache], mask: Any) -> Any:
        """Append rows of hidden states [rows, width], and return the layers' outputs.
        mask: [rows, places of the caches and rows], None for everything."""
        rotation = self._rotary(hidden, positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, rotation, cache, mask)
        return hidden

    def forward(self, hidden: Any, positions: Any, caches: Sequence[Cache], mask: Any) -> Any:
        """Like `extend`, with the final norm."""
        out = self.extend(hidden, positions, caches, mask)
        return rms_norm(out, self._norm, self.config.shape.eps)

    def logits(self, outputs: Any) -> Any:
        """Return the logits [rows, draft_vocab] of outputs of `forward`, at the exit's temperature."""
        exits = self.config.exits
        return self._output(outputs) / exits[0].temperature if exits else self._output(outputs)
