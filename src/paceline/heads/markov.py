"""DSpark's Markov heads: what the token before adds to the logits of a block's slot, by a low rank."""

from __future__ import annotations

from typing import Any

from paceline.heads.arrays import concatenate, sigmoid, tanh, zeros
from paceline.heads.decoder import MakeLinear, Weights, linear


class MarkovHead:
    """The network. vanilla: a product of two matrices. gated: the first one's row is gated by the slot's
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
