"""Training of a parallel draft: the small Llama of `draft`, or a given one, learns to draft at mask tokens.

A block of mask tokens behind a place sees the text before it, and its own earlier masks (PARD, An et al.,
2025, arXiv:2504.18583). Only some places have a block, where the authors drop positions at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.heads.config import KIND_KEY, VERSION
from paceline.heads.decoder import Weights
from paceline.heads.files import CARD, CONFIG
from paceline.models.names import model_path
from paceline.prepare.training.batches import TrainingBatch
from paceline.prepare.training.draft_model import FILE, DraftLlama, DraftRecipe
from paceline.prepare.training.features import TrainingSequence
from paceline.prepare.training.losses import sampled_logits
from paceline.prepare.training.recipe import document_mask
from paceline.system.whole import write_json

ANCHORS_PER_TOKEN = 1 / 5
MODEL = "model"  # the folder of the draft model in that of the parallel draft


class ParallelDraftRecipe(DraftRecipe):
    """`depth` tokens a pass; the last token of the vocabulary stands for those not drafted yet."""

    kind, is_parallel = "pard", True

    @property
    def mask_token(self) -> int:
        return self.target.vocab - 1

    def loss(self, network: DraftLlama, batch: TrainingBatch, embed: Any) -> Any:
        masks = self.options.depth - 1
        answered, anchors = batch.answered, batch.random_anchors(ANCHORS_PER_TOKEN)
        tokens, positions, mask = with_masks(batch.tokens, batch.document, anchors, masks, self.mask_token)
        outputs = network.outputs(tokens, mask, positions)
        blocks = outputs[len(batch) :].view(len(anchors), masks, outputs.shape[1]).unbind(1)
        targets = [*batch.targets(range(1), answered), *batch.targets(range(1, masks + 1), anchors)]
        sizes = [len(p) for _, p, _ in targets]
        logits, ids = sampled_logits(
            torch.cat([outputs[answered], *blocks]),
            network.embedding,
            torch.cat([ids for ids, _, _ in targets]),
        )
        parts = zip(ids.split(sizes), targets, strict=True)
        return self.decayed_loss(logits.split(sizes), [(ids, p, weight) for ids, (_, p, weight) in parts])

    def _accepted(self, network: DraftLlama, depth: int, one: TrainingSequence) -> Callable[[int], int]:
        tokens = torch.from_numpy(one.tokens.astype(np.int64))
        first, n = one.first_answer - 1, len(tokens)
        guesses = self._guesses(network, tokens, torch.arange(first, n)).numpy()[:, :depth]
        text = np.append(one.tokens, [-1] * depth)
        right = guesses == np.stack([text[p + 1 : p + 1 + depth] for p in range(first, n)])
        return lambda length: int(np.append(right[length - 1 - first], False).argmin())

    def _guesses(self, network: DraftLlama, tokens: Any, anchors: Any) -> Any:
        """Return the drafted tokens [anchors, depth] behind each place."""
        masks, n = self.options.depth - 1, len(tokens)
        whole = with_masks(tokens, torch.zeros_like(tokens), anchors, masks, self.mask_token)
        best = network.logits(whole[0], whole[2], whole[1]).argmax(-1)
        return torch.cat([best[anchors][:, None], best[n:].view(len(anchors), masks)], 1)

    def path(self, folder: Path, target: Any) -> Path:
        return folder

    def write(self, folder: Path, target: Any, weights: Weights, card: Mapping[str, Any]) -> None:
        """Write the draft model into a folder of its own, and how it drafts. Raises OSError."""
        super().write(folder / MODEL, target, weights, card)
        draft = f"{MODEL}/{FILE}" if model_path(target.path).is_file() else MODEL
        config = {
            KIND_KEY: self.kind,
            "version": VERSION,
            "target": asdict(self.target),
            "draft": draft,
            "mask_token_id": self.mask_token,
            "depth": self.options.depth,
        }
        write_json(folder / CARD, card)
        write_json(folder / CONFIG, config)


def with_masks(tokens: Any, document: Any, anchors: Any, masks: int, mask_token: int) -> tuple[Any, Any, Any]:
    """Return tokens with a block of masks for each anchor behind them, their positions, and the mask
    [rows, rows]. A block sees the text up to its anchor, and its own earlier masks."""
    n, device = len(tokens), tokens.device
    block = torch.arange(len(anchors), device=device).repeat_interleave(masks)
    place = torch.arange(1, masks + 1, device=device).repeat(len(anchors))
    begin = anchors.repeat_interleave(masks)
    at = torch.arange(n, device=device)
    text = (document[None] == document[begin][:, None]) & (at[None] <= begin[:, None])
    own = (block[:, None] == block[None]) & (place[:, None] >= place[None])
    hidden = torch.zeros((n, len(block)), dtype=torch.bool, device=device)
    mask = torch.cat([torch.cat([document_mask(document), hidden], 1), torch.cat([text, own], 1)], 0)
    positions = torch.cat([at, begin + place]).cpu().numpy()
    return torch.cat([tokens, torch.full_like(block, mask_token)]), positions, mask
