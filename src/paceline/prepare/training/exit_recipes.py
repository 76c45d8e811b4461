"""Recipes of heads on the target's first layers, measured on the recorded answers alone.

While a draft is accepted, its tokens are the answer's: the hidden states of its rows are known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.heads.config import ExitFacts, HeadConfig
from paceline.heads.decoder import KeyValueCache, Weights, causal_mask
from paceline.heads.exits import ExitsHead, KangarooHead
from paceline.prepare.training.batches import TrainingBatch
from paceline.prepare.training.evaluate import Acceptance, walk
from paceline.prepare.training.features import TrainingSequence
from paceline.prepare.training.recipe import (
    Recipe,
    StepsCache,
    document_mask,
    head_loss,
    layer_weights,
    normal,
)
from paceline.speculative.errors import UsageError

TEMPERATURES = np.geomspace(0.25, 8.0, 41)
MAX_CALIBRATED_ROWS = 4096
LAYER_WEIGHTS = 12  # of a usual layer, in squares of its width
Agreement = NDArray[np.bool_]  # of an answer's tokens: drafted behind the tokens before it
Drafts = tuple[TrainingSequence, Agreement]


class ExitRecipe(Recipe):
    """A head on some of the target's first layers."""

    default_layers: tuple[float, ...] = ()  # below 1: shares of the layers
    reads_target = False  # see evaluate.walk
    frozen = frozenset({"lm_head.weight"})

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        n = self.target.layers
        given = self.options.exit_layers or [
            layer if layer >= 1 else round(layer * n) for layer in self.default_layers
        ]
        if n < 2 or (self.options.exit_layers and not all(1 <= layer < n for layer in given)):
            raise UsageError(
                f"exit layers {given} (--exit-layers): must be 1 to {n - 1}, before the target's last"
            )
        self.layers = tuple(sorted({int(min(max(layer, 1), n - 1)) for layer in given}))
        self._exits: tuple[ExitFacts, ...] = ()
        self._default = 0

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.layers

    @property
    def config(self) -> HeadConfig:
        return replace(super().config, exits=self._exits, default_exit=self._default)

    def network(self, weights: Mapping[str, Any]) -> Any:
        return self.network_class(replace(self.config, exits=()), weights)

    def acceptance(
        self, weights: Weights, embedding: Any, sequences: Iterable[TrainingSequence], n_draft: int
    ) -> Acceptance:
        """Evaluate all exits, and record what was measured of each. Return the acceptance over all."""
        network, some = self.network(weights), list(sequences)
        drafts, facts = list[Drafts](), list[ExitFacts]()
        for place, layer in enumerate(self.layers):
            rows = [self._logits(network, one, place) for one in some]
            agrees: list[Agreement] = [
                self.vocabulary.ids[logits.argmax(1)] == one.tokens[one.first_answer :]
                for logits, one in zip(rows, some, strict=True)
            ]
            found, cost = list(zip(some, agrees, strict=True)), self._cost(layer)
            drafts += found
            numbers = range(1, n_draft + 1)
            lengths = [acceptance_of_drafts(found, n, self.reads_target).length for n in numbers]
            speedup = max(length / (1.0 + n * cost) for n, length in zip(numbers, lengths, strict=True))
            temperature = fit_temperature(np.concatenate(rows), np.concatenate(agrees))
            facts.append(ExitFacts(temperature, round(lengths[-1], 4), round(speedup, 4)))
        self._exits = tuple(facts)
        self._default = max(range(len(facts)), key=lambda place: facts[place].speedup)
        return acceptance_of_drafts(drafts, n_draft, self.reads_target)

    @abstractmethod
    def _logits(self, network: Any, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        """Return the logits of the rows that predict the answer's tokens."""

    def _cost(self, layer: int) -> float:
        """Return the weights that a drafted token reads, as a share of those of a token of the target."""
        square = LAYER_WEIGHTS * self.target.hidden**2
        ours = layer * square + len(self.vocabulary) * self.target.hidden
        return ours / (self.target.layers * square + self.target.vocab * self.target.hidden)


class ExitsRecipe(ExitRecipe):
    """Early exits at a quarter, half and three quarters of the layers, which begin as the target's output."""

    kind, network_class = "exits", ExitsHead
    default_layers = (0.25, 0.5, 0.75)

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        width, out = self.target.hidden, dict[str, Any]()
        rank = min(self.options.rank, width)
        for place in range(len(self.layers)):
            out |= {
                f"exits.{place}.input_norm.weight": torch.ones(width),
                f"exits.{place}.down.weight": normal(rank, width),
                f"exits.{place}.up.weight": torch.zeros(width, rank),
                f"exits.{place}.norm.weight": self.final_norm(output),
            }
        return {**out, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: ExitsHead, batch: TrainingBatch, embed: Any) -> Any:
        rows, variation = batch.answered, self.options.variation
        logits = (network.logits(batch.hidden[rows, i], i) for i in range(len(self.layers)))
        return sum(head_loss(of_exit, *batch.at(rows), variation) for of_exit in logits)

    def _logits(self, network: ExitsHead, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = one.hidden[one.first_answer - 1 : -1, place].astype(np.float32)
        out: NDArray[np.float32] = network.logits(hidden, place)
        return out


class KangarooRecipe(ExitRecipe):
    """Kangaroo: the loss against the target's distribution, through its own output matrix (section 3.2)."""

    kind, network_class = "kangaroo", KangarooHead
    default_layers = (2,)
    reads_target = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if len(self.layers) != 1:
            raise UsageError("a Kangaroo adapter has one exit layer: give one (--exit-layers)")

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        layer = layer_weights(self.shape, "layers.0.", self.shape.hidden, qk_norm=False)
        layer = {name: value for name, value in layer.items() if "attn" in name or "input" in name}
        layer["layers.0.self_attn.o_proj.weight"] = torch.zeros(
            self.shape.hidden, self.shape.heads * self.shape.head_dim
        )
        return {**layer, "norm.weight": self.final_norm(output), "lm_head.weight": self.rows_of(output)}

    def loss(self, network: KangarooHead, batch: TrainingBatch, embed: Any) -> Any:
        mask = document_mask(batch.document)
        outputs = network.forward(batch.hidden[:, 0], np.arange(len(batch)), [StepsCache()], mask)
        rows = batch.answered
        return head_loss(network.logits(outputs[rows]), *batch.at(rows), self.options.variation)

    def _logits(self, network: KangarooHead, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = one.hidden[:-1, 0].astype(np.float32)
        n, caches = len(hidden), [KeyValueCache() for _ in network.layers]
        outputs = network.forward(hidden, range(n), caches, causal_mask(n, n))
        out: NDArray[np.float32] = network.logits(outputs[one.first_answer - 1 :])
        return out


def acceptance_of_drafts(drafts: Sequence[Drafts], n_draft: int, reads_target: bool) -> Acceptance:
    """Return the acceptance of chains, each right as long as its tokens are those of the answer."""
    agreement = iter([agrees for _, agrees in drafts])

    def accepted(one: TrainingSequence) -> Callable[[int], int]:
        right, first = next(agreement), one.first_answer
        return lambda n: int(np.argmin(np.append(right[n - first : n - first + n_draft], False)))

    return walk((one for one, _ in drafts), accepted, n_draft, reads_target=reads_target)


def fit_temperature(logits: NDArray[Any], agrees: Agreement) -> float:
    """Return the temperature at which the top probability predicts the agreement best (Guo et al. 2017,
    arXiv:1706.04599)."""
    step = max(1, len(logits) // MAX_CALIBRATED_ROWS)
    logits, agrees = logits[::step].astype(np.float64), agrees[::step]
    below = logits - logits.max(1, keepdims=True)

    def loss(temperature: float) -> float:
        p = np.clip(1.0 / np.exp(below / temperature).sum(1), 1e-6, 1.0 - 1e-6)
        return -float(np.where(agrees, np.log(p), np.log1p(-p)).mean())

    return float(min(TEMPERATURES, key=loss))
