"""Which layers a model can do without, by what they do to its hidden states: CLaSp's dynamic programme
(arXiv:2505.24196, algorithm 1).

With d[i, j] the hidden states behind the first i layers of which j are skipped, layer i is either skipped,
which leaves d[i - 1, j - 1], or applied to d[i - 1, j]; whichever is closer (by cosine) to what the whole
model has there becomes d[i, j]. The candidates j are the batch of one pass, and each layer makes its choice
as it is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from paceline.backends.transformers.view import layers_of, sharing


class SkipOrApply(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A layer that is skipped or applied, for each number of skipped ones (the batch) by what is closer to
    `truth` [1, tokens, width] in its last `told` tokens. seen: layers before it that could be skipped."""

    def __init__(self, layer: Any, truth: Any, told: int, seen: int, free: bool, choices: list[Any]) -> None:
        super().__init__()
        self._truth, self._told, self._seen, self._free, self._choices = truth, told, seen, free, choices
        self.layer = layer
        if hasattr(layer, "attention_type"):  # a decoder asks its layers which mask they take
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Any, *args: Any, **given: Any) -> Any:
        out = self.layer(hidden_states, *args, **given)
        applied = plain(out)
        n = torch.arange(len(applied), device=applied.device)
        near = self._closeness(applied).masked_fill(n > self._seen, -torch.inf)
        skipped = hidden_states.roll(1, 0)  # of d[i - 1, j - 1]
        reachable = (n > 0) & (n - 1 <= self._seen) & self._free
        far = self._closeness(skipped).masked_fill(~reachable, -torch.inf)
        skips = far > near
        self._choices.append(skips.tolist())
        chosen = torch.where(skips[:, None, None], skipped, applied)
        return (chosen, *out[1:]) if isinstance(out, tuple) else chosen

    def _closeness(self, states: Any) -> Any:
        told = slice(-self._told, None)
        return torch.cosine_similarity(states[:, told].float(), self._truth[:, told].float(), dim=-1).mean(-1)


def closest(model: Any, tokens: Sequence[int], told: int, most: int) -> list[frozenset[int]]:
    """For 1 to `most` skipped layers, neither the first nor the last, which ones: judged by the last `told`
    of the tokens."""
    decoder = model.get_decoder()
    place, layers = layers_of(decoder)
    n = len(layers)
    most = min(most, n - 2)
    states: list[Any] = []
    choices: list[list[bool]] = []
    with torch.inference_mode():
        hooks = [
            layer.register_forward_hook(lambda _, __, out: states.append(plain(out))) for layer in layers
        ]
        try:
            run(decoder, place, lambda _, layer: layer, layers, [tokens])
        finally:
            for hook in hooks:
                hook.remove()

        def choosing(at: int, layer: Any) -> Any:
            return SkipOrApply(layer, states[at], told, max(0, at - 1), 0 < at < n - 1, choices)

        run(decoder, place, choosing, layers, [tokens] * (most + 1))
    return [traced(choices, j) for j in range(1, most + 1)]


def run(
    decoder: Any, place: str, made: Callable[[int, Any], Any], layers: Any, tokens: Sequence[Sequence[int]]
) -> None:
    """Pass `tokens` through a decoder with other layers."""
    other = sharing(decoder)
    other._modules[place] = torch.nn.ModuleList([made(at, layer) for at, layer in enumerate(layers)])
    device = next(decoder.parameters()).device
    other(input_ids=torch.tensor([list(row) for row in tokens], device=device), use_cache=False)


def traced(choices: Sequence[Sequence[bool]], j: int) -> frozenset[int]:
    """The layers that were skipped on the way to `j` of them."""
    out = []
    for at in reversed(range(len(choices))):
        if choices[at][j]:
            out.append(at)
            j -= 1
    return frozenset(out)


def plain(out: Any) -> Any:
    return out[0] if isinstance(out, tuple) else out
