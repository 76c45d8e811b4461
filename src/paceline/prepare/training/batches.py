"""Batches of training sequences, side by side in one row of tokens, and what the target said about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class TrainingSequence(Protocol):
    """A prompt and the target's answer, with hidden states (features.py).
    hidden: [tokens, layers, width]. ids, logprobs: [tokens, k], the likeliest tokens behind each token."""

    tokens: NDArray[np.int32]
    hidden: NDArray[Any]
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float16]
    first_answer_index: int


@dataclass(frozen=True)
class Batch:
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
        return (
            torch.roll(self.ids, -n, 0),
            torch.roll(self.p, -n, 0),
            torch.roll(self.weight, -n, 0) * same,
        )


class DraftVocabulary:
    """The tokens that a head drafts, and their places in it."""

    def __init__(self, ids: NDArray[np.int64], n_vocab: int) -> None:
        self.ids, self.n_vocab = ids, n_vocab
        self.places = np.full(n_vocab, -1, np.int64)
        self.places[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_whole(self) -> bool:
        return len(self.ids) == self.n_vocab

    @classmethod
    def of_answers(cls, answers: Iterable[Sequence[int]], n_vocab: int, size: int) -> DraftVocabulary:
        """Return the `size` most frequent tokens of answers, in the order of their ids; others fill it up."""
        counts = np.zeros(n_vocab, np.int64)
        for tokens in answers:
            np.add.at(counts, np.asarray(tokens, np.int64), 1)
        order = np.argsort(-counts, kind="stable")
        return cls(np.sort(order[: min(size, n_vocab)]), n_vocab)


def make_batch(
    sequences: Sequence[TrainingSequence], vocabulary: DraftVocabulary, device: Any, longest: int
) -> Batch:
    """Join sequences, of each at most the first `longest` tokens.
    A token behind which the likeliest one cannot be drafted has weight 0."""
    tokens = np.concatenate([one.tokens[:longest] for one in sequences]).astype(np.int64)
    document = np.repeat(np.arange(len(sequences)), [min(longest, len(one.tokens)) for one in sequences])
    ids = vocabulary.places[np.concatenate([one.ids[:longest] for one in sequences]).astype(np.int64)]
    p = np.exp(np.concatenate([one.logprobs[:longest] for one in sequences]).astype(np.float32))
    weight = np.concatenate([_answer_weight(one)[:longest] for one in sequences])
    weight = weight * (ids[:, 0] >= 0)
    p = np.where(ids >= 0, p, 0.0)
    p = p / np.maximum(p.sum(1, keepdims=True), 1e-9)
    hidden = np.concatenate([one.hidden[:longest] for one in sequences]).astype(np.float32)

    def sent(values: NDArray[Any]) -> Any:
        return torch.from_numpy(values).to(device)

    return Batch(
        sent(tokens),
        sent(hidden),
        sent(document),
        sent(np.maximum(ids, 0)),
        sent(p.astype(np.float32)),
        sent(weight.astype(np.float32)),
    )


def _answer_weight(one: TrainingSequence) -> NDArray[np.float32]:
    """Return 1 for tokens whose next token is part of the answer."""
    n = len(one.tokens)
    place = np.arange(n)
    return ((place >= one.first_answer_index - 1) & (place < n - 1)).astype(np.float32)


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
