"""EAGLE heads: one decoder layer that predicts from the next token's embedding and the hidden state before.

EAGLE (Li et al. 2024, arXiv:2401.15077) reads the target's last hidden state and feeds back its own guess of
the next one. EAGLE-3 (arXiv:2503.01840) reads three layers, and its layer sees embedding and hidden state
side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import concatenate, rms_norm
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import Cache, MakeLinear, Product, Rotary, Weights, decoder_layers, linear
from paceline.speculative.errors import ModelError


class EagleHead:
    """The network of EAGLE and EAGLE-3. Row p takes token p + 1 and the hidden state of token p."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        self._is_first = config.kind == "eagle"
        self._rotary = Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._fc = linear(weights, "fc", make)
        self._norm, self._output = weights.get("norm.weight"), output_matrix(weights, make)
        self._hidden_norm = weights.get("layers.0.hidden_norm.weight")
        self._input_norm = weights.get("input_norm.weight")
        self._fc_norms = (
            [weights[f"fc_norm.{i}.weight"] for i in range(len(config.layer_ids))] if config.fc_norm else []
        )

    def fuse(self, features: Any) -> Any:
        """Return the hidden states [rows, hidden] that the layer takes, of features [rows, layers, width]."""
        rows = features.reshape(features.shape[0], -1)
        if self._is_first:
            return rows
        eps = self.config.shape.eps
        if self._fc_norms:
            norms = enumerate(self._fc_norms)
            rows = concatenate([rms_norm(features[:, i], norm, eps) for i, norm in norms])
        if self.config.norm_before_fc and self._input_norm is not None:
            rows = rms_norm(rows, self._input_norm, eps)
        return self._fc(rows)

    def forward(
        self, embeddings: Any, hidden: Any, positions: Any, caches: Sequence[Cache], mask: Any
    ) -> Any:
        """Return the last layer's output [rows, hidden], the hidden states of the tokens it predicts.
        mask: [rows, places of the caches and rows]."""
        eps, first = self.config.shape.eps, self.layers[0]
        if self._is_first:
            x = residual = self._fc(concatenate([embeddings, hidden]))
            if first.input_norm is not None:
                x = rms_norm(x, first.input_norm, eps)
        else:
            normed = rms_norm(hidden, self._hidden_norm, eps)
            x = concatenate([rms_norm(embeddings, first.input_norm, eps), normed])
            residual = normed if self.config.norm_before_residual else hidden
        rotation = self._rotary(x, positions)
        residual = first.feed_forward(residual + first.attend(x, rotation, caches[0], mask))
        for layer, cache in zip(self.layers[1:], caches[1:], strict=True):
            residual = layer(residual, rotation, cache, mask)
        if self.config.norm_output and self._norm is not None:
            return rms_norm(residual, self._norm, eps)
        return residual

    def logits(self, hidden: Any) -> Any:
        """Return the logits [rows, draft_vocab] of the tokens behind the outputs of `forward`."""
        if self._norm is not None and not self._is_first and not self.config.norm_output:
            hidden = rms_norm(hidden, self._norm, self.config.shape.eps)
        return self._output(hidden)


def output_matrix(weights: Weights, make: MakeLinear | None = None) -> Product:
    """Return the product with the output matrix. Raises ModelError without one."""
    if "lm_head.weight" not in weights:
        raise ModelError("the head has no output matrix (lm_head.weight)")
    return linear(weights, "lm_head", make)
