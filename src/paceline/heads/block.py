"""Block heads: all drafts of a step in one pass (DFlash, arXiv:2602.06036; DSpark adds a Markov term).

The head's layers attend to the target's hidden states of the text, and to a block: the root's embedding, and
mask tokens for what is to be drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import concatenate, rms_norm, sigmoid, tanh, zeros
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import Cache, KeyValueCache, MakeLinear, Rotary, Weights, decoder_layers, linear
from paceline.heads.eagle import output_matrix


class BlockHead:
    """The network. Slot 0 of a block is the root; with `from_root` it already drafts a token."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        self._rotary = Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._fc, self._hidden_norm = linear(weights, "fc", make), weights["hidden_norm.weight"]
        self._norm, self._output = weights["norm.weight"], output_matrix(weights, make)
        self.markov = MarkovHead(config.markov, weights, make) if config.markov else None

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, the root's included."""
        return self.config.depth + (not self.config.from_root)

    def context(self, features: Any) -> Any:
        """Return what every layer attends to [rows, hidden], of features [rows, layers, width]."""
        rows = features.reshape(features.shape[0], -1)
        return rms_norm(self._fc(rows), self._hidden_norm, self.config.shape.eps)

    def extend(self, caches: Sequence[KeyValueCache], context: Any, positions: Any) -> None:
        """Append rows of the context to the layers' caches."""
        rotation = self._rotary(context, positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            cache.extend(*layer.keys_values(context, rotation))

    def forward(self, x: Any, caches: Sequence[Cache], positions: Any, masks: Sequence[Any]) -> Any:
        """Return the outputs [rows, hidden] of a block's embeddings, which the caches then hold, too.
        masks: of each layer, [rows, places of the cache and rows]; None where a row sees everything."""
        rotation = self._rotary(x, positions)
        for layer, cache, mask in zip(self.layers, caches, masks, strict=True):
            x = layer(x, rotation, cache, mask)
        return rms_norm(x, self._norm, self.config.shape.eps)

    def logits(self, outputs: Any) -> Any:
        """Return the logits [rows, draft_vocab] of outputs, without the Markov term."""
        return self._output(outputs)


def block_inputs(root: Any, mask: Any, rows: int) -> Any:
    """Return the embeddings of a block: the root's [1, hidden], and the mask token's."""
    return concatenate([root, *[mask] * (rows - 1)], 0)


class MarkovHead:
    """What the token before adds to the logits of a block's slot, by a low rank (DSpark).
    vanilla: a product of two matrices. gated: the first one's row is gated by the slot's
    output. rnn: a recurrent state goes from slot to slot."""

    def __init__(self, kind: str, weights: Weights, make: MakeLinear | None = None) -> None:
        self._kind = kind
        self._table, self._out = (
            weights["markov_head.markov_w1.weight"],
            linear(weights, "markov_head.markov_w2", make),
        )
        self._inner = {"gated": "gate_proj", "rnn": "joint_proj"}.get(kind, "")
        self._projection = linear(weights, f"markov_head.{self._inner}", make) if self._inner else None

    def __call__(self, tokens: Any, outputs: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the terms [rows, draft_vocab], and the state [rows, rank] of the slots behind.
        tokens: [rows], those before. outputs: [rows, hidden]. state: None at a block's start."""
        rows = self._table[tokens]
        if self._projection is None:
            return self._out(rows), None
        if self._kind == "gated":
            return self._out(sigmoid(self._projection(concatenate([outputs, rows]))) * rows), None
        state = zeros(rows, rows.shape) if state is None else state
        joint, rank = self._projection(concatenate([state, rows, outputs])), rows.shape[-1]
        gate = sigmoid(joint[..., :rank])
        state = gate * state + (1.0 - gate) * tanh(joint[..., rank : 2 * rank])
        return self._out(tanh(joint[..., 2 * rank :])), state
