"""An assistant: layers for multi-token prediction in a folder of their own, for Gemma 4.

They have no keys and values but those of the target's last layers, which they read in the target's cache. So
nothing of the text is computed, and drafted tokens see each other by the layers' output only: the rows of a
tree all have the root's position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.backends.common import parameters
from paceline.backends.transformers.kind import WINDOWED, text_config
from paceline.backends.transformers.loading import identity, load_config, load_model
from paceline.heads.arrays import to_numpy
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape
from paceline.heads.draft_base import HeadBase
from paceline.heads.session import EagleSession, Row
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session

if TYPE_CHECKING:
    from paceline.backends.transformers.target import HfTarget

MAX_BRANCHES = 64
Shape = tuple[int, int]  # heads of keys, and their size


class AssistantDraft(HeadBase):
    """The assistant in the folder `path`, beside the target with the model `base`.
    Raises ModelError if it is another target's."""

    kind = "mtp"

    def __init__(self, target: HfTarget, base: Any, path: Path) -> None:
        super().__init__(path, target)
        config = text_config(base.config)
        self._shapes = _check_target(path, target, config)
        dtype = str(base.dtype).removeprefix("torch.")
        self.settings = {**target.settings, "dtype": dtype}
        self._model: Any = load_model(
            path, device=str(base.device), dtype=dtype, attention=target.settings["attention"]
        )
        self._embed, self._like = (
            base.get_input_embeddings(),
            torch.empty(0, dtype=base.dtype, device=base.device),
        )
        modes = enumerate(config.kv_sharing_modes)
        self._layers = {config.layer_types[i]: i for i, mode in modes if mode == "store"}
        self.config = HeadConfig(
            kind=self.kind,
            target=TargetFacts(layers=target.layers, hidden=target.hidden_size, vocab=target.vocab.size),
            shape=LayerShape(target.hidden_size, 1, 1, 1, 0),
            draft_vocab=target.vocab.size,
            layer_ids=(target.layers,),
        )
        self.max_depth = target.caps.n_ctx
        self.caps = replace(target.caps, max_branches=MAX_BRANCHES, sparse_prompts=False)
        self.weight_bytes = int(self._model.get_memory_footprint())

    @property
    def description(self) -> str:
        n = sum(weight.numel() for weight in self._model.parameters())
        return f"{self._model.config.model_type} {parameters(n)} (MTP)"

    def identity(self) -> dict[str, Any]:
        return identity(self.path, self.settings)

    def open(self, beside: Session | None = None) -> AssistantSession:
        return AssistantSession(self, self._like, self.caps.n_ctx, beside)

    def reopen(self, session: Any, beside: Session | None) -> None:
        session.beside = beside

    def close(self) -> None:
        """Drop the layers, but not the target."""
        self._model = None

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def compute(self, tokens: Sequence[int], states: Any, place: int, cache: Any) -> Any:
        """Return the layers' output for tokens and the hidden states [n, hidden] of those before them.
        place: of the root, behind all that is read of `cache`; None in measurements."""
        n, like = len(tokens), self._like
        cells = dict[str, tuple[Any, Any]]()
        for name, (heads, width) in self._shapes.items():
            parts = [like.new_zeros(1, heads, place, width)] * 2
            if cache is not None:
                layer = cache.layers[self._layers[name]]
                parts = [part[:, :, :place] for part in (layer.keys, layer.values)]
            keys, values = (part.expand(n, -1, -1, -1) for part in parts)
            cells[name] = keys, values
        embedded = self._embed(torch.tensor(tokens, device=like.device))
        return self._model(
            inputs_embeds=torch.cat([embedded, states], -1)[:, None],
            position_ids=torch.full((n, 1), place, device=like.device),
            shared_kv_states=cells,
        )


def _check_target(path: Path, target: HfTarget, config: Any) -> dict[str, Shape]:
    """Return the shapes of the cells that are read. config: of the target's text model."""
    whole = load_config(path)
    own = text_config(whole)
    if own.model_type == config.model_type and WINDOWED in config.layer_types:
        shapes = _cache_shapes(own)
        if (
            whole.backbone_hidden_size == target.hidden_size
            and own.vocab_size == target.vocab.size
            and shapes == _cache_shapes(config)
        ):
            return shapes
    raise ModelError(f"{path}: is the assistant (MTP) of another model than {target.path}")


def _cache_shapes(config: Any) -> dict[str, Shape]:
    """Return the shape of the keys of each type of layers."""
    layers = zip(config.layer_types, config.per_layer_config, strict=True)
    return {name: (layer.num_key_value_heads, layer.head_dim) for name, layer in layers}


class AssistantSession(EagleSession):
    """A text in an assistant. beside: the target's session, None in measurements."""

    _head: Any

    def __init__(self, draft: AssistantDraft, like: Any, n_ctx: int, beside: Session | None) -> None:
        super().__init__(draft, like, n_ctx)
        self.beside: Any = beside

    def _read(self, tokens: Sequence[int], features: Any) -> None:
        """Compute nothing: the text is in the target's cache."""

    def _root(self, token: int, features: Any) -> Row:
        self._outputs = []
        return self._add(self._forward([token], features[:, 0], (), None))[0]

    def _forward(self, tokens: Sequence[int], hidden: Any, positions: Sequence[int], mask: Any) -> Any:
        if self.beside is None:
            return self._head.compute(tokens, hidden, max(1, len(self.tokens) - 1), None)
        slot = self.beside.slot
        return self._head.compute(tokens, hidden, len(slot.cached), slot.cache)

    def _add(self, out: Any) -> list[Row]:
        self._outputs += list(out.last_hidden_state)
        return list(to_numpy(out.logits[:, 0]))
