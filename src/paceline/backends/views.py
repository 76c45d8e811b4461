"""Views: parts of a model that draft for it, and their names on the command line.

    view:exit=22                          the first 22 layers, then the norm and the head
    view:skip=8                           without 8 blocks, evenly spread over the layers
    view:attention=3.5,feed_forward=3.9   without just these
    view:mtp                              its layers for multi-token prediction (backends/llama_cpp/mtp.py)
    view:                                 the view that `paceline views search` found for this model

A layer has two blocks, attention and feed-forward. Layers are numbered from 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from paceline.backends.interface import Backend
from paceline.models.names import VIEW_PREFIX
from paceline.speculative.errors import UsageError

SYNTAX = (
    "write view:mtp, view:exit=N, view:skip=N, view:attention=I.J,feed_forward=I.J, view:experts=N (of a "
    "mixture), or view: for the stored one"
)


@dataclass(frozen=True)
class ModelView:
    """What a view leaves out.
    exit_layer: number of layers, 0 for all. attention, feed_forward: layers without these blocks.
    experts: of a mixture, used for each token; 0 for all that the model uses."""

    exit_layer: int = 0
    attention: frozenset[int] = frozenset()
    feed_forward: frozenset[int] = frozenset()
    experts: int = 0

    @property
    def spec(self) -> str:
        """Spelling on the command line; empty for the whole model."""
        parts = [f"exit={self.exit_layer}"] if self.exit_layer else []
        for name in ("attention", "feed_forward"):
            if layers := getattr(self, name):
                parts.append(f"{name}={'.'.join(map(str, sorted(layers)))}")
        parts += [f"experts={self.experts}"] if self.experts else []
        return ",".join(parts)

    def active_blocks(self, layers: int) -> tuple[frozenset[int], frozenset[int]]:
        """Return the layers with attention, and with feed-forward. Raises UsageError for unknown layers."""
        if not 0 <= self.exit_layer <= layers or not self.attention | self.feed_forward <= set(range(layers)):
            raise UsageError(f"{VIEW_PREFIX}{self.spec}: the model has {layers} layers, numbered from 0")
        left = frozenset(range(self.exit_layer or layers))
        return left - self.attention, left - self.feed_forward

    def require_fewer_experts(self, used: int, path: Path) -> None:
        """Raise UsageError unless the view has fewer experts than the `used` ones of the model."""
        if self.experts >= used:
            raise UsageError(f"{VIEW_PREFIX}{self.spec}: {path} has no more experts a token itself")

    def n_skipped_blocks(self, layers: int) -> int:
        """Return the number of skipped blocks, of two per layer."""
        attention, feed_forward = self.active_blocks(layers)
        return 2 * layers - len(attention) - len(feed_forward)


@runtime_checkable
class SupportsViews(Protocol):
    """A backend that can leave out parts of its model."""

    @property
    def layers(self) -> int: ...

    def view(self, view: ModelView) -> Backend:
        """Return a model of the same weights without some parts; close it first. Raises UsageError.
        Sessions opened beside one of this model may use its cache."""


@runtime_checkable
class SearchesViews(SupportsViews, Protocol):
    """A backend that finds layers to skip."""

    def search_skipped_layers(self, tokens: Sequence[int], n_outputs: int, most: int) -> list[frozenset[int]]:
        """For 1 to `most` skipped layers, return those that change the last hidden states least."""


def evenly_spaced_view(layers: int, blocks: int) -> ModelView:
    """Return a view that skips blocks of evenly spread layers, but not of the first and the last."""
    inner = layers - 2
    if not 0 < blocks <= 2 * inner:
        raise UsageError(
            f"{VIEW_PREFIX}skip={blocks}: of {layers} layers 1 to {2 * max(0, inner)} blocks can be left out"
        )
    n = (blocks + 1) // 2
    places = [1 + (2 * at + 1) * inner // (2 * n) for at in range(n)]
    return ModelView(0, frozenset(places), frozenset(places[: blocks // 2]))


def parse_view(reference: str | os.PathLike[str], layers: int) -> ModelView | None:
    """Return the view that a reference names; None for the stored view. Raises UsageError."""
    text = os.fspath(reference)
    words = text.removeprefix(VIEW_PREFIX)
    if not words:
        return None
    data: dict[str, list[int]] = {}
    for word in words.split(","):
        name, _, value = word.partition("=")
        if name in data or not re.fullmatch(r"\d{1,9}(\.\d{1,9})*", value, re.ASCII):
            raise UsageError(f"{text}: {SYNTAX}")
        data[name] = list(map(int, value.split(".")))
    lists = {"attention", "feed_forward"}
    known = {"skip"} if "skip" in data else {"exit", "experts", *lists}
    if data.keys() - known or any(len(numbers) > 1 for name, numbers in data.items() if name not in lists):
        raise UsageError(f"{text}: {SYNTAX}")
    if "skip" in data:
        return evenly_spaced_view(layers, *data["skip"])
    attention, feed_forward = (frozenset(data.get(name, ())) for name in ("attention", "feed_forward"))
    view = ModelView(data.get("exit", [0])[0], attention, feed_forward, data.get("experts", [0])[0])
    if [0] in (data.get("exit"), data.get("experts")):
        raise UsageError(f"{text}: a view has at least one layer and one expert")
    view.active_blocks(layers)
    return view
