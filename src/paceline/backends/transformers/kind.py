"""Traits of an architecture, and the attention masks of its passes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.backends.transformers.session import PassInput
from paceline.speculative.interfaces import Rollback
from paceline.speculative.tree import ROOT

MAX_PREFILL_TOKENS = 512  # in one pass
Attends = NDArray[np.bool_]
WINDOWED, WHOLE = "sliding_attention", "full_attention"


class ArchitectureTraits:
    """Traits that an architecture declares; a probe finds which of them hold (trial.py).
    supports_custom_masks: passes take an attention mask.
    rollback: how the cache drops its last positions; see Caps.
    window: positions that a layer with sliding attention sees.
    single_token_passes: the state starts anew in a pass over several tokens (Mamba).
    state_in_modules: the state is in the modules, not in a cache."""

    def __init__(self, model: Any, config: Any) -> None:
        takes = inspect.signature(model.forward).parameters
        self.takes_positions, self.takes_few = "position_ids" in takes, "logits_to_keep" in takes
        attention = str(getattr(config, "_attn_implementation", "eager"))
        self._adds = attention == "eager"  # eager attention adds the mask to the scores
        self._dtype, self.device = model.dtype, model.device
        layers = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        self.window = int(window) if window and (not layers or WINDOWED in layers) else None
        self.state_in_modules = hasattr(model.get_decoder(), "_setup_cache")
        is_free = layers <= {WHOLE, WINDOWED} and not getattr(model, "_is_stateful", False)
        self.rollback: Rollback = "free" if is_free else "none" if self.state_in_modules else "restore"
        known = is_free and attention in ("eager", "sdpa")
        self.supports_custom_masks = known and self.takes_positions and not has_own_masks(model)
        self.takes_sparse_prompts = self.supports_custom_masks and self.window is None
        self._mixed = layers >= {WHOLE, WINDOWED}
        self.single_token_passes = False

    def mask(self, rows: Sequence[PassInput]) -> Any:
        """Return a mask that separates the rows of sessions; None for the model's default mask."""
        alone = len(rows) == 1 and (rows[0].start == 0 or len(rows[0].tokens) == 1)
        far = any(self.window is not None and each.places > self.window for each in rows)
        if not self.supports_custom_masks or (alone and rows[0].tree.is_chain and not far):
            return None
        whole = self._tensor([attention_mask(each) for each in rows])
        if self.window is None or not (far or self._mixed):
            return whole
        windowed = self._tensor([attention_mask(each, self.window) for each in rows])
        return {WHOLE: whole, WINDOWED: windowed} if self._mixed else windowed

    def _tensor(self, masks: Sequence[Attends]) -> Any:
        mask = torch.from_numpy(block_diagonal(masks))[None, None].to(self.device)
        if not self._adds:
            return mask
        added = torch.zeros(mask.shape, dtype=self._dtype, device=self.device)
        return added.masked_fill_(~mask, -torch.inf)


def has_own_masks(model: Any) -> bool:
    """Return whether layers hold masks over cache positions, like GPT-Neo. A probe is too short for them."""
    buffers = (buffer for child in model.get_decoder().children() for buffer in child.buffers())
    return any(it.dtype == torch.bool and it.dim() > 1 and it.shape[-1] == it.shape[-2] for it in buffers)


def text_config(config: Any) -> Any:
    """Return the configuration of the language model in a multimodal model."""
    return config.get_text_config(decoder=True)


def experts_of(config: Any) -> tuple[int, int]:
    """Return the experts that a token uses, and those that there are; 0 where the configuration is silent."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    experts = next((int(n) for name in names if (n := getattr(config, name, 0))), 0)
    return int(getattr(config, "num_experts_per_tok", 0) or 0), experts


def eos_token_ids(config: Any, generation: Any) -> Collection[int]:
    """Return the EOS tokens of both of a model's configurations."""
    ids: set[int] = set()
    for source in (config, generation):
        value = getattr(source, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else () if value is None else (value,))
    return ids


def attention_mask(rows: PassInput, window: int | None = None) -> Attends:
    """Return which cache places each row attends to [rows, places].
    A committed token attends to all places up to its place, a node to the committed tokens, its ancestors
    and itself. window: the largest distance of positions, plus one."""
    place = np.arange(rows.places)
    row = np.arange(rows.start, rows.places)[:, None]
    out: Attends = (place <= row) & ((place <= rows.base) | (row <= rows.base))
    first = rows.base + 1
    if rows.places > first:
        above = np.eye(len(rows.tree), dtype=np.bool_)  # [node, ancestor]
        for node, parent in enumerate(rows.tree.parents):
            if parent != ROOT:
                above[node] |= above[parent]
        begin = max(0, rows.start - first)  # the first new node
        out[max(0, first - rows.start) :, first:] = above[begin:]
    if window is not None:
        position = np.minimum(place, rows.base)
        position[first:] = rows.base + np.array(rows.tree.depths()[: rows.places - first], dtype=np.int64)
        out &= position[row] - position < window
    return out


def block_diagonal(masks: Sequence[Attends]) -> Attends:
    """Return one mask of several sessions, whose rows do not attend to each other."""
    if len(masks) == 1:
        return masks[0]
    out = np.zeros(np.sum([mask.shape for mask in masks], axis=0), np.bool_)
    row = place = 0
    for mask in masks:
        rows, places = mask.shape
        out[row : row + rows, place : place + places] = mask
        row, place = row + rows, place + places
    return out
