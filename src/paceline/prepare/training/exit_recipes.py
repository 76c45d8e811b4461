"""Recipes of heads on the target's first layers: early exits and Kangaroo."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.heads.config import ExitFacts, HeadConfig
from paceline.heads.decoder import KeyValueCache, Weights, causal_mask
from paceline.heads.networks import ExitsHead, KangarooHead
from paceline.prepare.training.dataset import TrainingBatch
from paceline.prepare.training.evaluate import (
    Acceptance,
    Agreement,
    Draft,
    fit_temperature,
    run_lengths,
    walk,
)
from paceline.prepare.training.features import Recorded, TrainingSequence
from paceline.prepare.training.recipe import (
    Recipe,
    StepsCache,
    document_mask,
    head_loss,
    layer_weights,
    normal,
)
from paceline.speculative.errors import UsageError

LAYER_WEIGHTS = 12  # of a usual layer, in squares of its width


class ExitRecipe(Recipe):
    """A head on some of the target's first layers, measured on the recorded answers alone: while a draft is
    accepted, its tokens are the answer's, and the hidden states of its rows are known."""

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
        self.layer_ids = tuple(sorted({int(min(max(layer, 1), n - 1)) for layer in given}))
        self._exits: tuple[ExitFacts, ...] = ()
        self._default = 0

    @property
    def config(self) -> HeadConfig:
        return replace(super().config, exits=self._exits, default_exit=self._default)

    def network(self, weights: Mapping[str, Any]) -> Any:
        return self.network_class(replace(self.config, exits=()), weights)

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        """Evaluate all exits, and record what was measured of each. Return the acceptance over all."""
        network, some = self.network(weights), list(sequences)
        drafts, facts = list[Draft](), list[ExitFacts]()
        for place, layer in enumerate(self.layer_ids):
            rows = [self._logits(network, sequence, place) for sequence in some]
            agrees: list[Agreement] = [
                self.vocabulary.ids[logits.argmax(1)] == sequence.tokens[sequence.first_answer :]
                for logits, sequence in zip(rows, some, strict=True)
            ]
            found: list[Draft] = [
                (sequence, run_lengths(a).item) for sequence, a in zip(some, agrees, strict=True)
            ]
            drafts += found
            numbers, cost = range(1, n_draft + 1), self._cost(layer)
            lengths = [walk(found, n, reads_target=self.reads_target).length for n in numbers]
            speedup = max(length / (1.0 + n * cost) for n, length in zip(numbers, lengths, strict=True))
            temperature = fit_temperature(np.concatenate(rows), np.concatenate(agrees))
            facts.append(ExitFacts(temperature, round(lengths[-1], 4), round(speedup, 4)))
        self._exits = tuple(facts)
        self._default = max(range(len(facts)), key=lambda place: facts[place].speedup)
        return walk(drafts, n_draft, reads_target=self.reads_target)

    @abstractmethod
    def _logits(self, network: Any, sequence: TrainingSequence, place: int) -> NDArray[np.float32]:
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
        for place in range(len(self.layer_ids)):
            out |= {
                f"exits.{place}.input_norm.weight": torch.ones(width),
                f"exits.{place}.down.weight": normal(rank, width),
                f"exits.{place}.up.weight": torch.zeros(width, rank),
                f"exits.{place}.norm.weight": self.final_norm(output),
            }
        return {**out, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: ExitsHead, batch: TrainingBatch, embed: Any) -> Any:
        rows, variation = batch.answered, self.options.variation
        logits = (network.logits(batch.hidden[rows, i], i) for i in range(len(self.layer_ids)))
        return sum(head_loss(of_exit, *batch.at(rows), variation) for of_exit in logits)

    def _logits(self, network: ExitsHead, sequence: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = sequence.hidden[sequence.first_answer - 1 : -1, place].astype(np.float32)
        return np.asarray(network.logits(hidden, place))


class KangarooRecipe(ExitRecipe):
    """Kangaroo: the loss against the target's distribution, through its own output matrix (section 3.2)."""

    kind, network_class = "kangaroo", KangarooHead
    default_layers = (2,)
    reads_target = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if len(self.layer_ids) != 1:
            raise UsageError("a Kangaroo adapter has one exit layer: give one (--exit-layers)")

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        layer = layer_weights(self.shape, "layers.0.", self.shape.hidden, qk_norm=False)
        layer = {name: value for name, value in layer.items() if "attn" in name or "input" in name}
        layer["layers.0.self_attn.o_proj.weight"].zero_()
        return {**layer, "norm.weight": self.final_norm(output), "lm_head.weight": self.rows_of(output)}

    def loss(self, network: KangarooHead, batch: TrainingBatch, embed: Any) -> Any:
        mask = document_mask(batch.document)
        outputs = network.forward(batch.hidden[:, 0], np.arange(len(batch)), [StepsCache()], mask)
        rows = batch.answered
        return head_loss(network.logits(outputs[rows]), *batch.at(rows), self.options.variation)

    def _logits(self, network: KangarooHead, sequence: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = sequence.hidden[:-1, 0].astype(np.float32)
        n, caches = len(hidden), [KeyValueCache() for _ in network.layers]
        outputs = network.forward(hidden, range(n), caches, causal_mask(n, n))
        return np.asarray(network.logits(outputs[sequence.first_answer - 1 :]))
