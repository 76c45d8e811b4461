"""Recipes of heads that read the target's hidden states after a pass: Medusa, EAGLE, EAGLE-3, DFlash."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paceline.heads.config import HeadConfig
from paceline.heads.networks import BlockHead, EagleHead, MedusaHead
from paceline.prepare.training.dataset import TrainingBatch
from paceline.prepare.training.recipe import (
    Recipe,
    StepsCache,
    document_mask,
    head_loss,
    layer_weights,
    normal,
)


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
