"""What a kind of head is made of, and its training loss. The networks are those that draft (paceline.heads),
over torch tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.heads.config import LAST_OUTPUT, HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape, Weights
from paceline.heads.files import write_head
from paceline.heads.session import SESSIONS
from paceline.heads.target import sample_tokens
from paceline.prepare.training.dataset import DraftVocabulary, TrainingBatch
from paceline.prepare.training.evaluate import Acceptance, draft_along, walk
from paceline.prepare.training.features import Recorded, TrainingSequence
from paceline.prepare.training.options import TrainingOptions
from paceline.speculative.errors import ModelError
from paceline.speculative.tree import chain

INIT_STD = 0.02
RANDOM_TOKENS = 4096  # in the loss of a draft model, with the likely ones


class Recipe(ABC):
    """One kind of head for one target."""

    kind = ""
    network_class: Any  # of paceline.heads
    is_parallel = False  # drafts `depth` tokens in a pass
    reads_three = False  # layers of the target, in place of its last output
    frozen = frozenset[str]()  # names of weights that are not trained
    evaluates_first = False  # before the first step: nothing worse is written
    drafts_all = False  # tokens of the target's vocabulary, whose logits are sampled in the loss

    def __init__(
        self, target: TargetFacts, shape: LayerShape, vocabulary: DraftVocabulary, options: TrainingOptions
    ) -> None:
        self.target, self.shape, self.vocabulary, self.options = target, shape, vocabulary, options
        # As in HeadConfig.
        self.layer_ids: tuple[int, ...] = three_layers(target.layers) if self.reads_three else (LAST_OUTPUT,)

    @property
    def config(self) -> HeadConfig:
        return HeadConfig(
            kind=self.kind,
            target=self.target,
            shape=self.shape,
            draft_vocab=len(self.vocabulary),
            layer_ids=self.layer_ids,
            depth=self.options.depth if self.is_parallel else 0,
        )

    def begin(self, target: Path, base: Path | None) -> None:  # noqa: B027
        """Read weights to begin with, of the target's file or of a given one. Raises ModelError."""

    @abstractmethod
    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        """Return first weights as torch tensors.
        output, embedding: the target's OutputHead, and its embedding matrix [n_vocab, hidden]."""

    @abstractmethod
    def loss(self, network: Any, batch: TrainingBatch, embed: Any) -> Any:
        """Return the loss of a batch. embed: returns embeddings [n, hidden] of tokens."""

    def network(self, weights: Mapping[str, Any]) -> Any:
        return self.network_class(self.config, weights)

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        """Return the acceptance on held-out answers, which the sessions that decoding uses draft along.
        weights, embedding: numpy arrays."""
        head = self.network(weights)
        depth = min(n_draft, head.config.depth or n_draft)

        def right_of(sequence: TrainingSequence) -> Callable[[int], int]:
            n_ctx, like = len(sequence.tokens) + depth + 1, np.zeros(0, np.float32)
            session = SESSIONS[type(head)](head, like, n_ctx, lambda tokens: embedding[list(tokens)])

            def is_right(drafted: list[int], token: int) -> bool:
                _, rows = session.compute(chain(drafted, self.kind))
                return bool(self.vocabulary.ids[int(rows[len(drafted)].argmax())] == token)

            return draft_along(sequence, session, depth, is_right)

        return walk(((sequence, right_of(sequence)) for sequence in sequences), depth, reads_target=True)

    def path(self, folder: Path, target: Any) -> Path:
        """Return what `-md` names."""
        return folder

    def write(self, folder: Path, target: Any, weights: Weights, card: Mapping[str, Any]) -> None:
        """Write the head. Raises OSError."""
        sample = target.token_embeddings(sample_tokens(target.vocab.size))
        write_head(folder, self.config, weights, self.vocabulary.ids, sample, card)

    def final_norm(self, output: Any) -> Any:
        """Return the target's final norm, to begin with."""
        if output.norm is None:
            return torch.ones(self.target.hidden)
        return torch.tensor(output.norm).float()

    def fusing_matrix(self) -> Any:
        """Return the matrix that fuses three layers; it begins as the last of them."""
        hidden, width = self.shape.hidden, self.target.hidden
        out = normal(hidden, 3 * width)
        out[:, 2 * width :] += torch.eye(hidden, width)
        return out

    def decayed_loss(self, logits: Iterable[Any], targets: Sequence[tuple[Any, Any, Any]]) -> Any:
        """Return the sum of the losses at successive depths, each with `decay` of the weight before.
        logits: [rows, draft_vocab] at each depth. targets: ids, p and weight."""
        options = self.options
        return sum(
            options.decay**depth * head_loss(some, *target, options.variation)
            for depth, (some, target) in enumerate(zip(logits, targets, strict=True))
        )

    def sampled_loss(
        self, outputs: Sequence[Any], matrix: Any, targets: Sequence[tuple[Any, Any, Any]]
    ) -> Any:
        """Return `decayed_loss` of what `matrix` multiplies, [rows, width] at each depth."""
        sizes = [len(p) for _, p, _ in targets]
        logits, ids = sampled_logits(torch.cat([*outputs]), matrix, torch.cat([ids for ids, _, _ in targets]))
        parts = zip(ids.split(sizes), targets, strict=True)
        return self.decayed_loss(logits.split(sizes), [(ids, p, weight) for ids, (_, p, weight) in parts])

    def rows_of(self, output: Any) -> Any:
        return torch.from_numpy(output.weight[self.vocabulary.ids]).float().clone()


def normal(*shape: int) -> Any:
    return torch.randn(*shape) * INIT_STD


def layer_weights(shape: LayerShape, prefix: str, inputs: int, *, qk_norm: bool) -> dict[str, Any]:
    """Return first weights of a decoder layer whose attention takes `inputs` numbers."""
    width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    out = {
        "self_attn.q_proj.weight": normal(width, inputs),
        "self_attn.k_proj.weight": normal(kv, inputs),
        "self_attn.v_proj.weight": normal(kv, inputs),
        "self_attn.o_proj.weight": normal(shape.hidden, width),
        "mlp.gate_proj.weight": normal(shape.feed_forward, shape.hidden),
        "mlp.up_proj.weight": normal(shape.feed_forward, shape.hidden),
        "mlp.down_proj.weight": normal(shape.hidden, shape.feed_forward),
        "input_layernorm.weight": torch.ones(shape.hidden),
        "post_attention_layernorm.weight": torch.ones(shape.hidden),
    }
    if qk_norm:
        out |= {f"self_attn.{name}_norm.weight": torch.ones(shape.head_dim) for name in "qk"}
    return {prefix + name: value for name, value in out.items()}


class StepsCache:
    """Keys and values of several steps over the same rows, end to end, with gradients."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any]] = []

    def extend(self, keys: Any, values: Any) -> tuple[Any, Any]:
        self._parts.append((keys, values))
        every_key, every_value = zip(*self._parts, strict=True)
        return torch.cat(every_key, 1), torch.cat(every_value, 1)


def three_layers(layers: int) -> tuple[int, int, int]:
    """Return a low, a middle and a high layer of a target. Raises ModelError for fewer than three."""
    if layers < 3:
        raise ModelError(f"the target has {layers} layers, and the head reads three")
    return (2, layers // 2, layers - 3) if layers >= 8 else (layers // 4, layers // 2, layers - 1)


def document_mask(document: Any) -> Any:
    """Return the mask [tokens, tokens] of a causal pass over several sequences."""
    at = torch.arange(len(document), device=document.device)
    return (document[:, None] == document[None]) & (at[:, None] >= at[None])


def sampled_logits(outputs: Any, matrix: Any, ids: Any) -> tuple[Any, Any]:
    """Return logits [rows, m] of the tokens in `ids` [rows, k] and of random others, and the places of `ids`
    among them. A random token stands for all that are not there, so the log of how many is added to its logit
    (Jean et al. 2015, arXiv:1412.2007). outputs: [rows, width]. matrix: [n_vocab, width]."""
    wanted = ids.unique()
    others = torch.randperm(len(matrix), device=wanted.device)[: len(wanted) + RANDOM_TOKENS]
    others = others[torch.isin(others, wanted, invert=True)][:RANDOM_TOKENS]
    logits = outputs @ matrix[torch.cat([wanted, others])].T
    if len(others):
        left = torch.zeros(logits.shape[1], device=logits.device)
        left[len(wanted) :] = math.log((len(matrix) - len(wanted)) / len(others))
        logits = logits + left
    return logits, torch.searchsorted(wanted, ids)


def head_loss(logits: Any, ids: Any, p: Any, weight: Any, variation: float) -> Any:
    """Return (1 - variation) * cross-entropy + variation * total variation, the mean over rows by weight.
    Cross-entropy is -sum p log q. Total variation is 1 - sum min(p, q), the rate at which sampled drafts are
    refused (Leviathan et al. 2023, arXiv:2211.17192, theorem 3.5).
    logits: [rows, draft_vocab]. ids, p: [rows, k]. weight: [rows]."""
    logq = logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)
    loss = (1.0 - variation) * (p * -logq).sum(1)
    if variation > 0.0:
        loss = loss + variation * (1.0 - torch.minimum(p, logq.exp()).sum(1))
    return (loss * weight).sum() / weight.sum().clamp(min=1.0)
