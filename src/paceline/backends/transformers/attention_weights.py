"""The attention weights of a pass, from the modules that compute them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from paceline.backends.speculative_prefill import Attention
from paceline.backends.transformers.view import ATTENTION
from paceline.speculative.errors import ModelError


@contextmanager
def attention_weights(model: Any, row: Attention, origin: str) -> Iterator[None]:
    """Fill `row` [prompt tokens] with the largest weights of all heads and layers in a pass of one token.
    Only the eager attention of transformers has weights. Raises ModelError if none are returned."""
    seen = list[Any]()

    def note(_module: Any, _given: Any, out: Any) -> None:
        weights = out[1] if isinstance(out, tuple) and len(out) > 1 else None
        if weights is not None and weights.ndim == 4:  # [1, heads, 1, places]
            seen.append(weights[0, :, -1, : len(row)].amax(0))

    parts = (part for layer in model.get_decoder().layers for part in layer.named_children())
    modules = [module for name, module in parts if name in ATTENTION]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(note))
        stack.callback(model.set_attn_implementation, model.config._attn_implementation)
        model.set_attn_implementation("eager")
        yield
    if not seen:
        raise ModelError(
            f"{origin}: its attention in transformers does not return weights: another draft model has to "
            "say which prompt tokens matter"
        )
    for weights in seen:
        np.maximum(row, weights.float().cpu().numpy(), out=row)
