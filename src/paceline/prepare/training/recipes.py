"""The recipes of heads: on last states (Medusa, EAGLE, EAGLE-3, DFlash) or first layers (exits, Kangaroo)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.heads.config import ExitFacts, HeadConfig
from paceline.heads.decoder import KeyValueCache, Weights, causal_mask
from paceline.heads.networks import BlockHead, EagleHead, ExitsHead, KangarooHead, MedusaHead
from paceline.prepare.training import evaluate
from paceline.prepare.training.dataset import TrainingBatch
from paceline.prepare.training.evaluate import Acceptance, Agreement, Draft, walk
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


class Eagle3Recipe(Recipe):
    """EAGLE-3 with training-time test: further steps on the head's own hidden states (arXiv:2503.01840).
    A row of a later step sees the rows of the text, and its own rows of the steps before."""

    kind, network_class, reads_three = "eagle3", EagleHead, True

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.shape.hidden
        return {
            "fc.weight": self.fusing_matrix(),
            **layer_weights(self.shape, "layers.0.", 2 * hidden, qk_norm=False),
            "layers.0.hidden_norm.weight": torch.ones(hidden),
            "norm.weight": self.final_norm(output),
            "lm_head.weight": self.rows_of(output),
        }

    def loss(self, network: Any, batch: TrainingBatch, embed: Any) -> Any:
        depths = range(1, 1 + self.options.depth)
        rows = batch.rows_before(depths)
        outputs, targets = self.steps(network, batch, embed, rows, len(depths)), batch.targets(depths, rows)
        if self.drafts_all:
            return self.sampled_loss([*map(network.normed, outputs)], network.matrix, targets)
        return self.decayed_loss(map(network.logits, outputs), targets)

    def steps(
        self, network: EagleHead, batch: TrainingBatch, embed: Any, rows: Any, depth: int
    ) -> Iterator[Any]:
        """Yield the outputs [rows, hidden] at each depth of the drafts behind `rows`, which are the text."""
        # All rows are context of the first step; only those that draft are computed behind it.
        causal, caches, hidden = document_mask(batch.document), [StepsCache()], network.fuse(batch.hidden)
        positions, embeddings = np.arange(len(batch)), embed(torch.roll(batch.tokens, -1, 0))
        causal = torch.cat([self.first_rows(network, batch, embed, caches), causal], 1)
        hidden = network.forward(embeddings, hidden, positions, caches, causal)[rows]
        positions, seen = positions[rows.cpu().numpy()], causal[rows]
        yield hidden
        for step in range(1, depth):
            embeddings = embed(torch.roll(batch.tokens, -1 - step, 0)[rows])
            seen = torch.cat([seen, torch.eye(len(rows), dtype=torch.bool, device=seen.device)], 1)
            hidden = network.forward(embeddings, hidden, positions + step, caches, seen)
            yield hidden

    def first_rows(self, network: EagleHead, batch: TrainingBatch, embed: Any, caches: Any) -> Any:
        """Compute rows before those of the text; return which of them each row sees [rows, first rows]."""
        return torch.zeros(len(batch), 0, dtype=torch.bool, device=batch.document.device)


class EagleRecipe(Recipe):
    """EAGLE: regression of the next hidden state, and cross-entropy through the target's own output matrix
    (arXiv:2401.15077, section 3.2), with noise on the hidden states."""

    kind, network_class = "eagle", EagleHead
    frozen = frozenset({"lm_head.weight"})
    noise, cross_entropy_weight = 0.2, 0.1

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.shape.hidden
        layer = layer_weights(self.shape, "layers.0.", hidden, qk_norm=False)
        del layer["layers.0.input_layernorm.weight"]  # the authors' layer has none
        fc = normal(hidden, 2 * hidden)
        fc[:, hidden:] += torch.eye(hidden)
        first = {"fc.weight": fc, "fc.bias": torch.zeros(hidden)}
        return {**first, **layer, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: EagleHead, batch: TrainingBatch, embed: Any) -> Any:
        features = batch.hidden[:, 0]
        noisy = features + (torch.rand_like(features) - 0.5) * self.noise * features.std()
        embeddings = embed(torch.roll(batch.tokens, -1, 0))
        mask = document_mask(batch.document)
        hidden = network.forward(embeddings, noisy, np.arange(len(batch)), [StepsCache()], mask)
        ids, p, weight = batch.shifted(1)
        total = weight.sum().clamp(min=1.0)
        apart = torch.nn.functional.smooth_l1_loss(hidden, torch.roll(features, -1, 0), reduction="none")
        regression = (apart.mean(1) * weight).sum() / total
        loss = head_loss(network.logits(hidden), ids, p, weight, self.options.variation)
        return regression + self.cross_entropy_weight * loss


class MedusaRecipe(Recipe):
    """Medusa-1: the target is frozen, and each block predicts its own distance (arXiv:2401.10774, 2.2.1)."""

    kind, network_class, is_parallel = "medusa", MedusaHead, True

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.target.hidden
        blocks = {
            f"blocks.{i}.linear.{name}": torch.zeros(shape)
            for i in range(self.options.depth)
            for name, shape in (("weight", (hidden, hidden)), ("bias", (hidden,)))
        }
        return {**blocks, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: MedusaHead, batch: TrainingBatch, embed: Any) -> Any:
        depths = range(1, 1 + self.options.depth)
        rows = batch.rows_before(depths)
        logits = network.forward(batch.hidden[rows, 0]).view(len(depths), len(rows), len(self.vocabulary))
        return self.decayed_loss(logits, batch.targets(depths, rows))


class BlockRecipe(Recipe):
    """DFlash with the loss of DSpark: blocks behind random places of the answers, each beside its context."""

    kind, network_class = "block", BlockHead
    is_parallel = reads_three = True
    anchors_per_token = 1 / 8

    @property
    def n_layers(self) -> int:
        return self.options.layers or 2

    @property
    def config(self) -> HeadConfig:
        return replace(
            super().config,
            n_layers=self.n_layers,
            mask_token=self.options.mask_token,
            markov="vanilla" if self.options.markov_rank else "",
            markov_rank=self.options.markov_rank,
            from_root=True,
        )

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden, layers = self.shape.hidden, dict[str, Any]()
        for i in range(self.n_layers):
            layers |= layer_weights(self.shape, f"layers.{i}.", hidden, qk_norm=True)
        out = {
            "fc.weight": self.fusing_matrix(),
            "hidden_norm.weight": torch.ones(hidden),
            **layers,
            "norm.weight": self.final_norm(output),
            "lm_head.weight": self.rows_of(output),
        }
        if rank := self.options.markov_rank:
            out["markov_head.markov_w1.weight"] = normal(self.target.vocab, rank)
            out["markov_head.markov_w2.weight"] = torch.zeros(len(self.vocabulary), rank)
        return out

    def loss(self, network: BlockHead, batch: TrainingBatch, embed: Any) -> Any:
        n, rows = len(batch), network.block_tokens
        anchors = batch.random_anchors(self.anchors_per_token)
        positions = (anchors[:, None] + torch.arange(rows, device=anchors.device)).flatten()
        block = torch.arange(len(anchors), device=anchors.device).repeat_interleave(rows)
        begin = anchors.repeat_interleave(rows)
        at = torch.arange(n, device=anchors.device)
        same = batch.document[None] == batch.document[begin][:, None]
        mask = torch.cat([same & (at[None] < begin[:, None]), block[:, None] == block[None]], 1)
        caches = [StepsCache() for _ in network.layers]
        network.extend(caches, network.context(batch.hidden), np.arange(n))  # type: ignore[arg-type]
        tokens = torch.where(positions == begin, batch.tokens[begin], self.options.mask_token)
        masks = [mask] * len(network.layers)
        outputs = network.forward(embed(tokens), caches, positions.cpu().numpy(), masks)
        before = batch.tokens[positions.clamp(max=n - 1)]  # the token that a slot's draft follows
        logits = network.logits(outputs)
        if network.markov is not None:
            logits = logits + network.markov(before, outputs)[0]
        logits = logits.view(len(anchors), rows, len(self.vocabulary)).unbind(1)
        return self.decayed_loss(logits, batch.targets(range(rows), anchors))


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
                (sequence, evaluate.run_lengths(a).item) for sequence, a in zip(some, agrees, strict=True)
            ]
            drafts += found
            numbers, cost = range(1, n_draft + 1), self._cost(layer)
            lengths = [walk(found, n, reads_target=self.reads_target).length for n in numbers]
            speedup = max(length / (1.0 + n * cost) for n, length in zip(numbers, lengths, strict=True))
            temperature = evaluate.fit_temperature(np.concatenate(rows), np.concatenate(agrees))
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


HEADS = (MedusaRecipe, EagleRecipe, Eagle3Recipe, BlockRecipe, ExitsRecipe, KangarooRecipe)
