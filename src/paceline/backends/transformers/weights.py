"""Token embeddings and output layer of a transformers model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.backends.interface import OutputHead
from paceline.speculative.errors import ModelError

FINAL_NORMS = ("norm", "norm_f", "final_layernorm", "final_layer_norm", "embedding_norm", "ln_f")
MAX_DIFFERENCE = 0.02  # of norms in 16 bits


def token_embeddings(model: Any, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the rows of the embedding matrix for these tokens [n, hidden_size]."""
    weight = model.get_input_embeddings().weight
    return _array(weight[torch.tensor(list(tokens), dtype=torch.long, device=weight.device)])


def output_head(model: Any, origin: str) -> OutputHead:
    """Return the final norm and the output layer. Raises ModelError for a model without an output layer."""
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is None or weight.dim() != 2:
        raise ModelError(f"{origin}: has no output layer whose weights draft heads could share")
    return OutputHead(_final_norm(model), _array(weight))


def final_norm_name(model: Any) -> str:
    """Return the name of the decoder's final norm, "" if it has none of the known ones."""
    decoder = model.get_decoder()
    return next((name for name in FINAL_NORMS if getattr(decoder, name, None) is not None), "")


def _final_norm(model: Any) -> NDArray[np.float32] | None:
    """Return the factors of the final RMS norm; None for other norms."""
    norm = getattr(model.get_decoder(), final_norm_name(model), None)
    weight = getattr(norm, "weight", None)
    if norm is None or weight is None or getattr(norm, "bias", None) is not None:
        return None
    with torch.inference_mode():
        scales = norm(torch.ones_like(weight)[None, None])[0, 0].float()
    for factors in (weight.float(), 1.0 + weight.float()):  # Gemma stores the factors minus one
        if torch.allclose(scales, factors, rtol=MAX_DIFFERENCE, atol=MAX_DIFFERENCE):
            return _array(factors)
    return None


def _array(weight: Any) -> NDArray[np.float32]:
    return np.asarray(weight.detach().float().cpu().numpy())
