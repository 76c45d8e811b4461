"""A small Llama distilled to draft for a target: an ordinary draft model, for every engine.
It has the target's vocabulary, and learns the target's distribution over its own answers (DistillSpec: Zhou
et al. 2023, arXiv:2310.08461). Its embedding begins as the principal components of the target's. As a
parallel draft, it or a given Llama also learns to draft at mask tokens (PARD, An et al. 2025,
arXiv:2504.18583)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.heads.arrays import rms_norm
from paceline.heads.config import KIND_KEY, VERSION, layer_entries
from paceline.heads.decoder import LayerShape, Rotary, Weights, decoder_layers
from paceline.heads.files import CARD, CONFIG, write_safetensors
from paceline.models.names import model_path
from paceline.prepare.training.dataset import TrainingBatch
from paceline.prepare.training.evaluate import Acceptance, run_lengths, walk
from paceline.prepare.training.features import Recorded, TrainingSequence
from paceline.prepare.training.gguf_files import LlamaFile, read_llama, write_llama
from paceline.prepare.training.recipe import Recipe, document_mask, layer_weights
from paceline.speculative.errors import UsageError, VocabError
from paceline.system.atomic import write_json

WIDTH, LAYERS = 256, 4
HEAD_DIM, KV_HEADS = 64, 1
FILE = "draft.gguf"
EMBEDDING_STD = 0.05
ANCHORS_PER_TOKEN = 1 / 5
MODEL = "model"  # the folder of the draft model in that of a parallel draft
TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "generation_config.json")


class DraftLlama:
    """The network; its embedding is also the output matrix."""

    def __init__(self, shape: LayerShape, layers: int, weights: Weights) -> None:
        self.shape, self._rotary = shape, Rotary(shape)
        self._layers = decoder_layers(shape, layers, weights)
        self.embedding, self._norm = weights["embed_tokens.weight"], weights["norm.weight"]

    def logits(self, tokens: Any, mask: Any, positions: Any = None) -> Any:
        """Return the logits [tokens, n_vocab] behind each token. positions: 0, 1, ... by default."""
        return self.outputs(tokens, mask, positions) @ self.embedding.T

    def outputs(self, tokens: Any, mask: Any, positions: Any = None) -> Any:
        """Return what the output matrix multiplies, [tokens, width]."""
        x = self.embedding[tokens]
        rotation = self._rotary(x, np.arange(len(tokens)) if positions is None else positions)
        for layer in self._layers:
            x = layer(x, rotation, None, mask)
        return rms_norm(x, self._norm, self.shape.eps)


class DraftRecipe(Recipe):
    """A Llama of `layers` layers and `width` numbers, without features.
    base: a draft model of the same vocabulary to begin with, in place of a new one."""

    kind, drafts_all = "draft", True
    base: LlamaFile | None = None

    def begin(self, target: Path, base: Path | None) -> None:
        if base is not None:
            self.base = read_llama(base)
            self.shape = self.base.shape
            return
        width = self.options.width or WIDTH
        if width % HEAD_DIM or width > self.target.hidden:
            raise UsageError(
                f"a width of {width} (--width): must be a multiple of {HEAD_DIM}, at most the target's "
                f"{self.target.hidden}"
            )
        self.shape = LayerShape(width, width // HEAD_DIM, KV_HEADS, HEAD_DIM, 3 * width)

    @property
    def n_layers(self) -> int:
        return self.base.layers if self.base else self.options.layers or LAYERS

    def network(self, weights: Mapping[str, Any]) -> DraftLlama:
        return DraftLlama(self.shape, self.n_layers, weights)

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        if self.base is not None:
            if len(self.base.weights["embed_tokens.weight"]) != self.target.vocab:
                raise VocabError("the draft model to begin with has another vocabulary than the target")
            return {name: torch.tensor(value) for name, value in self.base.weights.items()}
        shape = self.shape
        out = {"embed_tokens.weight": principal_components(embedding, shape.hidden)}
        for i in range(self.n_layers):
            out |= layer_weights(shape, f"layers.{i}.", shape.hidden, qk_norm=False)
        return {**out, "norm.weight": torch.ones(shape.hidden)}

    def loss(self, network: DraftLlama, batch: TrainingBatch, embed: Any) -> Any:
        rows = batch.answered
        outputs = network.outputs(batch.tokens, document_mask(batch.document))[rows]
        return self.sampled_loss([outputs], network.embedding, [batch.at(rows)])

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        network = self.network({name: torch.from_numpy(w) for name, w in weights.items()})
        with torch.inference_mode():
            drafts = [(sequence, self.right_tokens(network, sequence).item) for sequence in sequences]
        return walk(drafts, min(n_draft, self.config.depth or n_draft))

    def right_tokens(self, network: DraftLlama, sequence: TrainingSequence) -> NDArray[np.int64]:
        """Return how many drafted tokens are right from each of the answer's on."""
        tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
        guesses = network.logits(tokens, document_mask(torch.zeros_like(tokens))).argmax(-1)
        return run_lengths((guesses[:-1] == tokens[1:]).numpy()[sequence.first_answer - 1 :])

    def path(self, folder: Path, target: Any) -> Path:
        is_file = not self.is_parallel and model_path(target.path).is_file()
        return folder / FILE if is_file else folder

    def write(self, folder: Path, target: Any, weights: Weights, card: Mapping[str, Any]) -> None:
        """Write draft.gguf for a GGUF target, else a folder of a transformers model."""
        shape, source = self.shape, model_path(target.path)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CARD, card)
        if source.is_file():
            name = f"Draft for {target.name}"
            write_llama(folder / FILE, shape, self.n_layers, weights, name, source)
            return
        named = {f"model.{name}": np.asarray(w, np.float32) for name, w in weights.items()}
        write_safetensors(folder / "model.safetensors", named)
        for pattern in TOKENIZER_FILES:
            for file in source.glob(pattern):
                shutil.copyfile(file, folder / file.name)
        config = layer_entries(shape) | {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": self.n_layers,
            "vocab_size": self.target.vocab,
            "max_position_embeddings": 8192,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "eos_token_id": sorted(target.vocab.eos),
        }
        write_json(folder / "config.json", config)


def principal_components(embedding: Any, width: int) -> Any:
    """Return the embedding [n_vocab, width] in its own most telling directions."""
    table = embedding.float()
    _, vectors = torch.linalg.eigh(table.T @ table)
    parts = table @ vectors[:, -width:]
    return (parts * (EMBEDDING_STD / parts.std())).contiguous()


class ParallelDraftRecipe(DraftRecipe):
    """`depth` tokens per pass; the last token of the vocabulary is the mask of those not drafted yet. A block
    of masks after a place sees the text before it, and its own earlier masks. Only some places have a block,
    where PARD's authors drop positions at random."""

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
        return self.sampled_loss([outputs[answered], *blocks], network.embedding, targets)

    def right_tokens(self, network: DraftLlama, sequence: TrainingSequence) -> NDArray[np.int64]:
        masks, n = self.options.depth - 1, len(sequence.tokens)
        tokens, anchors = (
            torch.from_numpy(sequence.tokens.astype(np.int64)),
            torch.arange(sequence.first_answer - 1, n),
        )
        whole = with_masks(tokens, torch.zeros_like(tokens), anchors, masks, self.mask_token)
        best = network.logits(whole[0], whole[2], whole[1]).argmax(-1)
        guesses = torch.cat([best[anchors][:, None], best[n:].view(len(anchors), masks)], 1).numpy()
        text = np.append(sequence.tokens[sequence.first_answer :], [-1] * (masks + 1))
        right = guesses == np.lib.stride_tricks.sliding_window_view(text, masks + 1)
        return np.asarray(np.cumprod(right, 1).sum(1))

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
