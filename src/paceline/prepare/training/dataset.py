"""The batches that a head is trained on, as tensors, and the tokens that it drafts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.prepare.training.features import TrainingSequence


class DraftVocabulary:
    """The tokens that a head drafts, and their places in it (FR-Spec, arXiv:2502.14856)."""

    def __init__(self, ids: NDArray[np.int64], n_vocab: int) -> None:
        self.ids = ids
        self.indices = np.full(n_vocab, -1, np.int64)
        self.indices[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def of_answers(cls, answers: Iterable[NDArray[np.int32]], n_vocab: int, size: int) -> DraftVocabulary:
        """Return the `size` most frequent tokens of answers, in the order of their ids; others fill it up."""
        counts = np.zeros(n_vocab, np.int64)
        for tokens in answers:
            np.add.at(counts, tokens.astype(np.int64), 1)
        order = np.argsort(-counts, kind="stable")
        return cls(np.sort(order[: min(size, n_vocab)]), n_vocab)


@dataclass(frozen=True)
class TrainingBatch:
    """Sequences end to end, as tensors.
    hidden: [tokens, layers, width]. document: the sequence of each token.
    ids, p: [tokens, k], draft ids and probabilities of the likeliest next tokens, renormalised; 0 for tokens
    that cannot be drafted. weight: [tokens], 1 where the next token belongs to an answer and can be drafted.
    """

    tokens: Any
    hidden: Any
    document: Any
    ids: Any
    p: Any
    weight: Any

    def __len__(self) -> int:
        return len(self.tokens)

    def shifted(self, n: int) -> tuple[Any, Any, Any]:
        """Return ids, p and weight of the tokens `n` places later; weight 0 beyond a sequence's end."""
        same = torch.zeros_like(self.weight)
        if n < len(self):
            same[: len(self) - n] = (self.document[n:] == self.document[: len(self) - n]).to(same.dtype)
        ids, p, weight = (torch.roll(values, -n, 0) for values in (self.ids, self.p, self.weight))
        return ids, p, weight * same

    def targets(self, depths: range, rows: Any) -> list[tuple[Any, Any, Any]]:
        """Return ids, p and weight of the tokens so many places behind `rows`, for each depth."""
        return [(ids[rows], p[rows], weight[rows]) for ids, p, weight in map(self.shifted, depths)]

    @property
    def answered(self) -> Any:
        """The rows whose next token is part of an answer."""
        return self.weight.nonzero()[:, 0]

    def at(self, rows: Any) -> tuple[Any, Any, Any]:
        """Return ids, p and weight of some rows."""
        return self.ids[rows], self.p[rows], self.weight[rows]

    def random_anchors(self, share: float) -> Any:
        """Return random ones of the answered rows, this share of all rows and at least one."""
        rows = self.answered
        if not len(rows):
            return torch.zeros(1, dtype=torch.long, device=rows.device)
        return rows[torch.randperm(len(rows), device=rows.device)[: max(1, int(len(self) * share))]]

    def rows_before(self, depths: range) -> Any:
        """Return the rows behind which an answer's token can be drafted at one of the depths."""
        return torch.stack([self.shifted(depth)[2] for depth in depths]).sum(0).nonzero()[:, 0]


def make_batch(
    sequences: Sequence[TrainingSequence], vocabulary: DraftVocabulary, device: Any, longest: int
) -> TrainingBatch:
    """Join sequences, of each at most the first `longest` tokens.
    A token behind which the likeliest one cannot be drafted teaches nothing: it has weight 0."""
    tokens = np.concatenate([sequence.tokens[:longest] for sequence in sequences]).astype(np.int64)
    document = np.repeat(
        np.arange(len(sequences)), [min(longest, len(sequence.tokens)) for sequence in sequences]
    )
    hidden = np.concatenate([sequence.hidden[:longest] for sequence in sequences]).astype(np.float32)
    k = sequences[0].ids.shape[1]
    ids = np.zeros((len(tokens), k), np.int64)
    p = np.zeros((len(tokens), k), np.float32)
    start = 0
    for sequence in sequences:
        n = min(longest, len(sequence.tokens))
        # Row i of `ids` is predicted by the token before the answer's token i.
        first = sequence.first_answer - 1
        rows = max(0, min(n - first, len(sequence.ids)))
        here = slice(start + first, start + first + rows)
        indices = vocabulary.indices[sequence.ids[:rows]]
        ids[here] = np.maximum(indices, 0)
        known = np.where(indices >= 0, np.exp(sequence.logprobs[:rows].astype(np.float32)), 0.0)
        p[here] = known / np.maximum(known.sum(1, keepdims=True), 1e-9) * (indices[:, :1] >= 0)
        start += n

    arrays = tokens, hidden, document, ids, p, (p.sum(1) > 0).astype(np.float32)
    return TrainingBatch(*(torch.from_numpy(values).to(device) for values in arrays))


def batches_of(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[list[int]]:
    """Group sequence numbers into batches of up to so many tokens."""
    out, n = [list[int]()], 0
    for index in order:
        if out[-1] and n + lengths[index] > tokens:
            out.append([])
            n = 0
        out[-1].append(index)
        n += lengths[index]
    return out
