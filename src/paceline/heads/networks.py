"""The networks of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import concatenate, rms_norm, sigmoid, silu, tanh, zeros
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import (
    Cache,
    KeyValueCache,
    MakeLinear,
    Product,
    Rotary,
    Weights,
    decoder_layers,
    linear,
)

Caches = Sequence[Cache]  # of the layers


class EagleHead:
    """One decoder layer. Row p takes token p + 1 and the hidden state of token p.
    EAGLE (Li et al. 2024, arXiv:2401.15077) reads the target's last hidden state and feeds back its own guess
    of the next one; EAGLE-3 (arXiv:2503.01840) reads three layers, and its layer sees embedding and hidden
    state side by side."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        self._joins = config.kind != "eagle3"  # embedding and hidden state, before the layer
        self._rotary = Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._fc = linear(weights, "fc", make)
        self._norm = None if config.kind == "eagle" else weights.get("norm.weight")
        self._output = linear(weights, "lm_head", make)
        self._hidden_norm = weights.get("layers.0.hidden_norm.weight")
        self._input_norm = weights.get("input_norm.weight")
        n_norms = len(config.layer_ids) if config.fc_norm else 0
        self._fc_norms = [weights[f"fc_norm.{i}.weight"] for i in range(n_norms)]

    def fuse(self, features: Any) -> Any:
        """Return the hidden states [rows, hidden] that the layer takes, of features [rows, layers, width]."""
        rows = features.reshape(features.shape[0], -1)
        if self._joins:
            return rows
        eps = self.config.shape.eps
        if self._fc_norms:
            norms = enumerate(self._fc_norms)
            rows = concatenate([rms_norm(features[:, i], norm, eps) for i, norm in norms])
        if self.config.norm_before_fc and self._input_norm is not None:
            rows = rms_norm(rows, self._input_norm, eps)
        return self._fc(rows)

    def forward(self, embeddings: Any, hidden: Any, positions: Any, caches: Caches, mask: Any) -> Any:
        """Return the last layer's output [rows, hidden], the hidden states of the tokens it predicts.
        mask: [rows, places of the caches and rows]."""
        eps, first = self.config.shape.eps, self.layers[0]
        if self._joins:
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
        return self._output(self.normed(hidden))

    def normed(self, hidden: Any) -> Any:
        """Return what the output matrix multiplies, of outputs of `forward`."""
        if self._norm is None or self.config.norm_output:
            return hidden
        return rms_norm(hidden, self._norm, self.config.shape.eps)


class MtpHead(EagleHead):
    """A target's own layer for multi-token prediction, as it is trained; llama.cpp computes it in drafting
    (backends/llama_cpp/mtp.py). It joins embedding and hidden state as EAGLE does, after a norm of each."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        super().__init__(config, weights, make)
        self._norms = weights["enorm.weight"], weights["hnorm.weight"]
        self.matrix = weights["lm_head.weight"]

    def forward(self, embeddings: Any, hidden: Any, positions: Any, caches: Caches, mask: Any) -> Any:
        eps, (enorm, hnorm) = self.config.shape.eps, self._norms
        given = rms_norm(embeddings, enorm, eps), rms_norm(hidden, hnorm, eps)
        return super().forward(*given, positions, caches, mask)


class MedusaHead:
    """Small blocks on the target's last hidden state (Cai et al. 2024, arXiv:2401.10774): head i drafts the
    token at depth i + 1. They share one output matrix over the draft vocabulary, or each has its own."""

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
            self._outputs = [linear(weights, "lm_head", make)]

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


class BlockHead:
    """All drafts of a step in one pass (DFlash, arXiv:2602.06036; DSpark adds a Markov term). The layers
    attend to the target's hidden states of the text, and to a block: the root's embedding in slot 0, which
    with `from_root` already drafts a token, and mask tokens."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config = config
        self._rotary = Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._fc, self._hidden_norm = linear(weights, "fc", make), weights["hidden_norm.weight"]
        self._norm, self._output = weights["norm.weight"], linear(weights, "lm_head", make)
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

    def forward(self, x: Any, caches: Caches, positions: Any, masks: Sequence[Any]) -> Any:
        """Return the outputs [rows, hidden] of a block's embeddings, which the caches then hold, too.
        masks: of each layer, [rows, places of the cache and rows]; None where a row sees everything."""
        rotation = self._rotary(x, positions)
        for layer, cache, mask in zip(self.layers, caches, masks, strict=True):
            x = layer(x, rotation, cache, mask)
        return rms_norm(x, self._norm, self.config.shape.eps)

    def logits(self, outputs: Any) -> Any:
        """Return the logits [rows, draft_vocab] of outputs, without the Markov term."""
        return self._output(outputs)


class MarkovHead:
    """What the token before adds to the logits of a block's slot, by a low rank (DSpark).
    vanilla: a product of two matrices. gated: the first one's row is gated by the slot's
    output. rnn: a recurrent state goes from slot to slot."""

    def __init__(self, kind: str, weights: Weights, make: MakeLinear | None = None) -> None:
        self._kind = kind
        self._table = weights["markov_head.markov_w1.weight"]
        self._out = linear(weights, "markov_head.markov_w2", make)
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
        self._output = linear(weights, "lm_head", make)

    def logits(self, hidden: Any, place: int) -> Any:
        """Return logits [rows, draft_vocab] from hidden states [rows, width] of the exit layer `place`.
        They are divided by the exit's temperature, by which the top probability is an acceptance rate."""
        out = self._output(self._adapters[place](hidden))
        return out / self.config.exits[place].temperature if self.config.exits else out


class KangarooHead:
    """An attention layer without a feed-forward block on a hidden state of the target (Liu et al. 2024,
    arXiv:2404.18911). Row p takes that of token p, and predicts the next token."""

    def __init__(self, config: HeadConfig, weights: Weights, make: MakeLinear | None = None) -> None:
        self.config, self._rotary = config, Rotary(config.shape)
        self.layers = decoder_layers(config.shape, config.n_layers, weights, make)
        self._norm, self._output = weights["norm.weight"], linear(weights, "lm_head", make)

    def extend(self, hidden: Any, positions: Any, caches: Caches, mask: Any) -> Any:
        """Append rows of hidden states [rows, width], and return the layers' outputs.
        mask: [rows, places of the caches and rows], None for everything."""
        rotation = self._rotary(hidden, positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, rotation, cache, mask)
        return hidden

    def forward(self, hidden: Any, positions: Any, caches: Caches, mask: Any) -> Any:
        """Like `extend`, with the final norm."""
        out = self.extend(hidden, positions, caches, mask)
        return rms_norm(out, self._norm, self.config.shape.eps)

    def logits(self, outputs: Any) -> Any:
        """Return the logits [rows, draft_vocab] of outputs of `forward`, at the exit's temperature."""
        exits = self.config.exits
        return self._output(outputs) / exits[0].temperature if exits else self._output(outputs)
