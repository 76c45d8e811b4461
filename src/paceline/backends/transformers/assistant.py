"""An assistant: layers for multi-token prediction in a folder of their own, for Gemma 4.

They have no keys and values but those of the target's last layers, which they read in the target's cache. So
nothing of the text is computed, and drafted tokens see each other by the layers' output only: the rows of a
tree all have the root's position.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.backends.common import parameters
from paceline.backends.transformers.kind import text_config
from paceline.backends.transformers.loading import identity, load_config, load_model
from paceline.heads.arrays import to_numpy
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.draft_base import HeadBase
from paceline.heads.session import EagleSession, Row
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session

if TYPE_CHECKING:
    from paceline.backends.transformers.target import HfTarget


class HfAssistantDraft(HeadBase):
    """The assistant in the folder `path`, beside the target with the model `base`.
    cells: of each kind of layers the target's layer whose cache is read, its heads of keys, and their size.
    Raises ModelError if it is another target's."""

    kind = "mtp"

    def __init__(self, target: HfTarget, base: Any, path: Path) -> None:
        super().__init__(path, target)
        whole, text = load_config(path), text_config(base.config)
        own, hidden, size = text_config(whole), target.hidden_size, target.vocab.size
        fits = own.model_type == text.model_type and len({*own.layer_types}) == 2
        fits = fits and (whole.backbone_hidden_size, own.vocab_size) == (hidden, size)
        if not fits or _cache_shapes(own) != _cache_shapes(text):
            raise ModelError(f"{path}: is the assistant (MTP) of another model than {target.path}")
        layers = {kind: i for i, kind in enumerate(text.layer_types) if text.kv_sharing_modes[i] == "store"}
        self.cells = {kind: (layers[kind], *shape) for kind, shape in _cache_shapes(text).items()}
        dtype, attention = str(base.dtype).removeprefix("torch."), target.settings["attention"]
        self.settings = {**target.settings, "dtype": dtype}
        self.model: Any = load_model(path, device=str(base.device), dtype=dtype, attention=attention)
        self.weight_bytes = int(self.model.get_memory_footprint())
        self._embed, self.max_depth = base.get_input_embeddings(), self.caps.n_ctx
        facts = TargetFacts(layers=target.layers, hidden=hidden, vocab=size)
        self.config = HeadConfig(kind=self.kind, target=facts, layer_ids=(target.layers,))

    @property
    def description(self) -> str:
        return f"{self.model.config.model_type} {parameters(self.model.num_parameters())} (MTP)"

    def identity(self) -> dict[str, Any]:
        return identity(self.path, self.settings)

    def open(self, beside: Session | None = None) -> HfAssistantSession:
        session = HfAssistantSession(self, self._embed.weight.new_empty(0), self.caps.n_ctx, self._embed)
        self.reopen(session, beside)
        return session

    def reopen(self, session: Any, beside: Session | None) -> None:
        session.beside = beside

    def close(self) -> None:
        """Drop the layers, but not the target."""
        self.model = None


def _cache_shapes(config: Any) -> dict[str, tuple[int, int]]:
    layers = zip(config.layer_types, config.per_layer_config, strict=True)
    return {kind: (layer.num_key_value_heads, layer.head_dim) for kind, layer in layers}


class HfAssistantSession(EagleSession):
    """A text in an assistant. beside: the target's session, None in measurements."""

    _head: Any
    beside: Any

    def _read(self, tokens: Sequence[int], features: Any) -> None:
        """Compute nothing: the text is in the target's cache."""

    def _root(self, token: int, features: Any) -> Row:
        self._outputs = []
        return self._add(self._forward([token], features[:, 0], (), None))[0]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def _forward(self, tokens: Sequence[int], hidden: Any, positions: Sequence[int], mask: Any) -> Any:
        """Compute rows that see the target's cells before the root, and have its position."""
        n, root, seen = len(tokens), max(1, len(self.tokens) - 1), {}
        for kind, (index, heads, width) in self._head.cells.items():
            both = [self._like.new_zeros(1, heads, root, width)] * 2
            if self.beside is not None:
                layer = self.beside.slot.cache.layers[index]
                both = [layer.keys[:, :, :root], layer.values[:, :, :root]]
            seen[kind] = tuple(part.expand(n, -1, -1, -1) for part in both)
        embedded = self._embed(torch.tensor(tokens, device=self._like.device))
        return self._head.model(
            inputs_embeds=torch.cat([embedded, hidden], -1)[:, None],
            position_ids=torch.full((n, 1), root, device=self._like.device),
            shared_kv_states=seen,
        )

    def _add(self, out: Any) -> list[Row]:
        self._outputs += list(out.last_hidden_state)
        return list(to_numpy(out.logits[:, 0]))
