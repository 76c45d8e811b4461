"""Multi-token prediction (DeepSeek-V3, arXiv:2412.19437, section 2.2): layers in the target's own folder, as
transformers has them (MtpModel), or in a folder of their own, Gemma 4's assistant.

Row p has token p + 1 and the target's hidden state of token p, or for a drafted token the layer's own output
above it. Several layers draft one token each: layer i has token p + 1 + i, and the output of layer i - 1 in
that row.

An assistant has no keys and values but those of the target's last layers, which it reads in the target's
cache. So nothing of the text is computed, and drafted tokens see each other by the layers' output only: the
rows of a tree all have the root's position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from paceline.backends.common import parameters
from paceline.backends.transformers.kind import WINDOWED, text_config
from paceline.backends.transformers.loading import identity, load_config, load_model, wrap_loading_errors
from paceline.backends.transformers.strip import SequenceCache, StateCache
from paceline.heads.arrays import to_numpy
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.draft_base import HeadBase
from paceline.heads.session import EagleSession, NetworkSession, Row
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session
from paceline.speculative.tree import DraftTree

if TYPE_CHECKING:
    from paceline.backends.transformers.target import HfTarget


class MtpBase(HeadBase):
    """Layers beside their target."""

    kind = "mtp"
    model: Any

    def __init__(self, path: Path, target: HfTarget) -> None:
        super().__init__(path, target)
        facts = TargetFacts(layers=target.layers, hidden=target.hidden_size, vocab=target.vocab.size)
        self.config = HeadConfig(kind=self.kind, target=facts, layer_ids=(target.layers,))

    def close(self) -> None:
        """Drop the layers, but not the target."""
        self.model = None


class HfMtpDraft(MtpBase):
    """The layers of the target's folder, for the model `base`. One layer takes trees if the target does.
    Raises ModelError if transformers cannot load them."""

    def __init__(self, target: HfTarget, base: Any) -> None:
        super().__init__(target.path, target)
        with wrap_loading_errors(target.path):
            self.model = MtpModel.from_pretrained(base, device_map={"": base.device}).eval()
        if base.dtype != base.config.dtype:  # it was converted after it was loaded
            self.model.to(base.dtype)
        self.weight_bytes = sum(weight.nbytes for weight in self.model.layers.parameters())
        self.heads, config = len(self.model.layers), self.model.config
        self.max_depth, self.takes_trees = self.heads, self.heads == 1 and target.caps.max_branches > 1
        if self.takes_trees:
            self.max_depth = self.caps.n_ctx
            is_windowed = (getattr(config, "layer_types", None) or [""])[0] == WINDOWED
            self.config = replace(self.config, windows=(config.sliding_window,) if is_windowed else ())
        else:
            self.caps = replace(self.caps, max_branches=1)

    @property
    def description(self) -> str:
        return f"{self.heads} of the model's own layers (MTP)"

    def open(self, beside: Session | None = None) -> NetworkSession:
        kind = MtpTreeSession if self.takes_trees else MtpChainSession
        return kind(self, self.model.embed_tokens.weight.new_empty(0), self.caps.n_ctx)

    def fuse(self, features: Any) -> Any:
        """Return what the first layer reads of the target's hidden states."""
        return features[:, 0]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def compute(self, layer: int, tokens: Sequence[int], hidden: Any, positions: Any, cache: Any) -> Any:
        """Return a layer's outputs of rows [n, hidden_size]."""
        ids, at = torch.tensor([[tokens], [positions]], device=hidden.device)
        return self.model.forward_layer(layer, hidden[None], at, cache, input_ids=ids)[0]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def logits(self, out: Any) -> Any:
        return self.model._project_to_logits(out)


class HfAssistantDraft(MtpBase):
    """The assistant in the folder `path`, beside the target with the model `base`.
    cells: of each kind of layers the target's layer whose cache is read, its heads of keys, and their size.
    Raises ModelError if it is another target's."""

    def __init__(self, target: HfTarget, base: Any, path: Path) -> None:
        super().__init__(path, target)
        whole, text = load_config(path), text_config(base.config)
        own, facts = text_config(whole), self.config.target
        fits = own.model_type == text.model_type and len({*own.layer_types}) == 2
        fits = fits and (whole.backbone_hidden_size, own.vocab_size) == (facts.hidden, facts.vocab)
        if not fits or _cache_shapes(own) != _cache_shapes(text):
            raise ModelError(f"{path}: is the assistant (MTP) of another model than {target.path}")
        layers = {kind: i for i, kind in enumerate(text.layer_types) if text.kv_sharing_modes[i] == "store"}
        self.cells = {kind: (layers[kind], *shape) for kind, shape in _cache_shapes(text).items()}
        dtype, attention = str(base.dtype).removeprefix("torch."), target.settings["attention"]
        self.settings = {**target.settings, "dtype": dtype}
        self.model = load_model(path, device=str(base.device), dtype=dtype, attention=attention)
        self.weight_bytes = int(self.model.get_memory_footprint())
        self._embed, self.max_depth = base.get_input_embeddings(), self.caps.n_ctx

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


def _cache_shapes(config: Any) -> dict[str, tuple[int, int]]:
    layers = zip(config.layer_types, config.per_layer_config, strict=True)
    return {kind: (layer.num_key_value_heads, layer.head_dim) for kind, layer in layers}


class MtpTreeSession(EagleSession):
    """A text in one layer of plain attention."""

    _head: Any

    def __init__(self, draft: HfMtpDraft, like: Any, n_ctx: int) -> None:
        super().__init__(draft, like, n_ctx)
        self._caches: list[Any] = [SequenceCache()]

    def _forward(self, tokens: Sequence[int], hidden: Any, positions: Sequence[int], mask: Any) -> Any:
        if mask is not None:
            if window := max(self._head.config.windows, default=0):  # that of drafted tokens moves on
                mask[:, : max(0, positions[0] - self._first + 1 - window)] = False
            mask = torch.where(mask, 0.0, -torch.inf).to(hidden.dtype)[None, None]  # added to the scores
        self._head.model.create_masks_for_mtp_layer = lambda *_: {"attention_mask": mask}
        return self._head.compute(0, tokens, hidden, [at + 1 for at in positions], self._caches[0])


class MtpCheckpointCache(StateCache, MtpCache):  # type: ignore[misc]  # transformers is untyped here
    """The cache of several layers, or of those with a state."""


class MtpChainSession(NetworkSession):
    """A text in several layers, or in one with a state, which returns to a checkpoint before the root.
    A layer holds back its last output of the text: the next layer's row needs a token more."""

    _head: Any
    _cache: Any
    _state: list[dict[str, Any]]  # of the cache before the root
    _last: list[Any]  # outputs held back [0 or 1, hidden_size]

    def __init__(self, draft: HfMtpDraft, like: Any, n_ctx: int) -> None:
        super().__init__(draft, like, n_ctx)
        self._truncate(0)

    def _read(self, tokens: Sequence[int], features: Any) -> None:
        hidden, end = features[:, 0], self._next + 1 + len(tokens)
        outputs = self._last[:]  # a pass that is interrupted leaves those of the checkpoint
        for layer, last in enumerate(self._last):
            if len(hidden):
                out = torch.cat([last, self._layer(layer, tokens, hidden, end)])
                outputs[layer], hidden = out[-1:], out[:-1]
        self._state, self._last = self._cache.state(), outputs

    def _layer(self, layer: int, tokens: Sequence[int], hidden: Any, end: int) -> Any:
        """Compute as many rows as there are hidden states, of the last tokens. end: position after these."""
        first = end - len(hidden)
        return self._head.compute(layer, tokens[-len(hidden) :], hidden, range(first, end), self._cache)

    def _root(self, token: int, features: Any) -> Row:
        self._path, self._hidden = list[int](), features[:, 0]
        return self._draft(token)

    def _nodes(self, tree: DraftTree, known: int) -> None:
        self._rows += [self._draft(token) for token in tree.tokens[known:]]

    def _draft(self, token: int) -> Row:
        """Return the logits after the root, or after a drafted token, by the next layer."""
        layer = min(len(self._path), len(self._last) - 1)  # a longer draft is only measured
        self._path.append(token)
        out = self._layer(layer, self._path, self._hidden, self._next + 1 + len(self._path))
        self._hidden = torch.cat([self._last[layer], out])
        row: Row = to_numpy(self._head.logits(out[-1:]))[0]
        return row

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Let the root wait until all layers compute it."""
        self._rewind()

    def _leave_out(self, start: int) -> None:
        super()._leave_out(start)
        self._last = [last[:0] for last in self._last]

    def rewind(self, n: int) -> None:
        """Keep all rows or none."""
        super().rewind(n if n > self._next else 0)

    def _truncate(self, n: int) -> None:
        if n:
            self._cache.restore(self._state)
        else:
            self._cache = MtpCheckpointCache(self._head.model.config)
            self._last = [self._like.new_zeros(0, self._shape[1])] * self._head.heads


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
