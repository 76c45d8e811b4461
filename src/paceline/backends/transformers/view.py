"""Views: models that skip blocks of another model and draft for it with the same weights.

An early exit has the first layers, the norm and the head (LayerSkip, arXiv:2404.16710), a layer skip any
choice of blocks (Draft & Verify, arXiv:2309.08168). A session opened beside one of the whole model uses its
cache. The next pass of the whole model drops what the view wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from copy import copy
from pathlib import Path
from typing import Any

import torch

from paceline.backends.common import common_prefix
from paceline.backends.transformers.session import HfSession, HfSlot, PassInput
from paceline.backends.transformers.weights import final_norm_name
from paceline.speculative.errors import UsageError
from paceline.speculative.tree import EMPTY, DraftTree

# What transformers calls the two parts of a layer.
ATTENTION = ("self_attn", "attention", "attn", "self_attention")
FEED_FORWARD = ("mlp", "feed_forward", "block_sparse_moe", "ffn")


class ViewSession(HfSession):
    """A session of a view. beside: the session of the whole model, whose cache it uses."""

    def __init__(self, beside: HfSession, n_ctx: int) -> None:
        super().__init__(beside.slots, n_ctx)
        self._beside = beside

    @property
    def slot(self) -> HfSlot:
        return self._beside.slot

    @property
    def shared(self) -> int:
        """Tokens before the root that the whole model has computed."""
        return common_prefix(self.slot.cached, self.tokens[:-1])

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 1 - self.shared) if self.tokens else 0

    def _append(self, tokens: Sequence[int]) -> None:
        """Note nothing: the cache is that of the whole model."""

    def plan_prefill(self, n: int) -> PassInput:
        """Plan nothing: the whole model prefills for the view."""
        return PassInput([], [], self.shared, self.shared, EMPTY, n_outputs=0, first_row=0)

    def read(self, n: int) -> None:
        """Record nothing; see plan_prefill."""

    def plan(self, tree: DraftTree) -> PassInput:
        first = self.begin(tree)
        self._planned = tree
        return self._rows(tree, first, self.shared)

    def mark_computed(self) -> None:
        self.tree = self._planned

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None: ...

    def rollback(self) -> None:
        self._clear_tree()


class IdentityLayer(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A layer that returns its input. returns: see output_lengths."""

    def __init__(self, layer: Any, returns: int) -> None:
        super().__init__()
        self._returns = returns
        if hasattr(layer, "attention_type"):
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Any, *_: Any, **__: Any) -> Any:
        return as_module_output(hidden_states, self._returns)


class ZeroBlock(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A residual block that adds nothing. A block whose second argument is the residual returns that.
    returns: see output_lengths."""

    def __init__(self, returns: int) -> None:
        super().__init__()
        self._returns = returns

    def forward(self, hidden_states: Any, *others: Any, **_: Any) -> Any:
        residual = others[0] if others else None
        adds = isinstance(residual, torch.Tensor) and residual.shape == hidden_states.shape
        return as_module_output(residual if adds else torch.zeros_like(hidden_states), self._returns)


def as_module_output(states: Any, returns: int) -> Any:
    return (states, *[None] * (returns - 1)) if returns else states


def output_lengths(model: Any, modules: Sequence[Any]) -> list[int]:
    """Return how many values each module returns, 0 for no tuple, by a pass of one token."""
    found = dict.fromkeys(modules, 0)

    def note(module: Any, _: Any, out: Any) -> None:
        found[module] = len(out) if isinstance(out, tuple) else 0

    with ExitStack() as hooks, torch.inference_mode():
        for module in modules:
            hooks.enter_context(module.register_forward_hook(note))
        model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), use_cache=False)
    return list(found.values())


def build_view(model: Any, attention: Collection[int], feed_forward: Collection[int]) -> Any:
    """Return the model with only these layers' blocks. Raises UsageError for other kinds of layers."""
    decoder = model.get_decoder()
    place, layers = layers_of(decoder)
    if 0 not in attention:
        raise UsageError("a view needs the first layer's attention, by which places in the text are counted")
    made = [(layer, at in attention, at in feed_forward) for at, layer in enumerate(layers)]
    skipped = {at: skipped_block(*parts) for at, parts in enumerate(made) if not all(parts[1:])}
    returns = output_lengths(model, [part if name else layers[at] for at, (name, part) in skipped.items()])
    chosen = list(layers)
    for (at, (name, _)), n in zip(skipped.items(), returns, strict=True):
        chosen[at] = shallow_copy(layers[at]) if name else IdentityLayer(layers[at], n)
        if name:
            chosen[at]._modules[name] = ZeroBlock(n)
    inner = shallow_copy(decoder)
    inner._modules[place] = torch.nn.ModuleList(chosen)
    way = next(name for name, module in model.named_modules() if module is decoder)
    return with_submodule(model, [part for part in way.split(".") if part], inner)


def with_experts(model: Any, used: int, n: int) -> Any:
    """Return the model with routers that choose `n` experts instead of `used`. Raises UsageError if it has no
    such routers."""
    routers = [way for way, module in model.named_modules() if getattr(module, "top_k", None) == used]
    if not routers:
        raise UsageError(f"{type(model).__name__}: has no routers whose number of experts can be set (top_k)")
    for way in routers:  # a block and its router may both have the number
        router = shallow_copy(model.get_submodule(way))
        router.top_k = n
        model = with_submodule(model, way.split("."), router)
    return model


class FirstColumn(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """In place of an output layer whose logits nobody reads."""

    def forward(self, hidden_states: Any) -> Any:
        return hidden_states[..., :1]


def without_output(model: Any, path: Path) -> Any:
    """Return the model without its final norm and output layer, so that its last hidden state is the last
    layer's output. Raises UsageError for a model whose norm is not found."""
    decoder, output, name = model.get_decoder(), model.get_output_embeddings(), final_norm_name(model)
    if not name or output is None:
        raise UsageError(f"{path}: its final norm is not known: no head can draft from its first layers")
    inner = shallow_copy(decoder)
    inner._modules[name] = torch.nn.Identity()
    ways = {module: way.split(".") for way, module in model.named_modules() if module in (decoder, output)}
    return with_submodule(with_submodule(model, ways[decoder], inner), ways[output], FirstColumn())


def with_submodule(module: Any, way: Sequence[str], part: Any) -> Any:
    """Return a copy of the module with another part at the path `way`."""
    if not way:
        return part
    out = shallow_copy(module)
    out._modules[way[0]] = with_submodule(module._modules[way[0]], way[1:], part)
    return out


def layers_of(decoder: Any) -> tuple[str, Any]:
    """Return the name of a decoder's list of layers, and the list. Raises UsageError if there is none."""
    n = decoder.config.num_hidden_layers
    for name, module in decoder._modules.items():
        if isinstance(module, torch.nn.ModuleList) and len(module) == n:
            return name, module
    raise UsageError(f"{type(decoder).__name__}: has no list of layers to choose from")


def skipped_block(layer: Any, attends: bool, feeds: bool) -> tuple[str, Any]:
    """Return name and module of a layer's skipped block; "" and the layer if both are. Raises UsageError."""
    if not attends and not feeds:
        return "", layer
    names = FEED_FORWARD if attends else ATTENTION
    name = next((name for name in names if name in layer._modules), None)
    if name is None:
        raise UsageError(
            f"{type(layer).__name__}: its blocks cannot be skipped one by one; skip whole layers"
        )
    return name, layer._modules[name]


def shallow_copy(module: Any) -> Any:
    """Return a copy of a module that shares its parts."""
    out = copy(module)
    out.__dict__ = dict(module.__dict__)
    out._modules = dict(module._modules)
    return out


def search_skipped_layers(
    model: Any, tokens: Sequence[int], n_outputs: int, most: int
) -> list[frozenset[int]]:
    """For 1 to `most` skipped layers, return those that change the last `n_outputs` hidden states least.
    The measure is cosine similarity (block influence, arXiv:2403.03853). The first and last layers stay."""
    _, layers = layers_of(model.get_decoder())
    similarity: list[float] = []

    def note(_: Any, given: Any, named: Any, out: Any) -> None:
        before = given[0] if given else named["hidden_states"]
        after = out[0] if isinstance(out, tuple) else out
        pair = (states[:, -n_outputs:].float() for states in (before, after))
        similarity.append(float(torch.cosine_similarity(*pair, dim=-1).mean()))

    with ExitStack() as hooks, torch.inference_mode():
        for layer in layers:
            hooks.enter_context(layer.register_forward_hook(note, with_kwargs=True))
        model(input_ids=torch.tensor([list(tokens)], device=model.device), use_cache=False)
    order = sorted(range(1, len(layers) - 1), key=lambda layer: -similarity[layer])
    return [frozenset(order[:n]) for n in range(1, min(most, len(order)) + 1)]
