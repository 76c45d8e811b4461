"""Speculative prefill: only the prompt tokens that a draft model attends to are computed by the target.

Liu et al. 2025 (arXiv:2502.02789). The draft reads the prompt and a few tokens of its own answer. A prompt
token is as important as the most that any head pays attention to it, on average over these tokens. Importance
is pooled, and whole chunks are chosen, at their original positions. This is lossy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.backends.interface import Backend
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, SelectsPromptTokens, Target
from paceline.speculative.tree import EMPTY
from paceline.speculative.vocabulary import Vocab

LOOK_AHEAD = 8  # tokens, the prompt's last one and those that the draft continues it with
POOLED = 13  # neighbours that share their importance
CHUNK = 32  # tokens
SHORT = 256  # a prompt of so many tokens is computed whole

Attention = NDArray[np.float32]  # [steps, prompt tokens]


@runtime_checkable
class ShowsAttention(Protocol):
    """A model that shows what it attends to."""

    @property
    def vocab(self) -> Vocab: ...

    def prompt_attention(self, prompt: Sequence[int], steps: int) -> Attention:
        """Return the largest weight of all heads and layers by which each of `steps` tokens attends to each
        prompt token: the prompt's last one, and those that follow it greedily. Raises ModelError."""


def look_ahead(
    target: Target,
    prompt: Sequence[int],
    steps: int,
    capture: Callable[[Attention], AbstractContextManager[None]],
) -> Attention:
    """Return `ShowsAttention.prompt_attention`. capture: fills a row [prompt tokens] in the pass within it.
    Near the end of the context there are fewer rows."""
    steps = min(steps, target.caps.n_ctx - len(prompt) + 1)
    out = np.zeros((steps, len(prompt)), np.float32)
    with closing(target.open()) as session:
        session.extend(prompt)
        target.forward([(session, session.pending_tokens)], NO_OUTPUTS)
        for step in range(steps):
            with capture(out[step]):
                row = target.forward([(session, EMPTY)], NO_OUTPUTS)[0]
            if step + 1 < steps:
                session.commit((), row.argmax(0))
    return out


def select_chunks(attention: Attention, share: float) -> list[int]:
    """Return the positions of the most important chunks, ascending: a share of the prompt, rounded up to
    chunks. The first chunk, which heads with nothing to say attend to, and the last one are always there."""
    importance, around = attention.mean(0), POOLED // 2
    n = len(importance)
    sums = np.concatenate([[0.0], np.cumsum(importance, dtype=np.float64)])
    place = np.arange(n)
    first, end = np.maximum(place - around, 0), np.minimum(place + around + 1, n)
    pooled = (sums[end] - sums[first]) / (end - first)
    bounds = np.array([0, *range(n % CHUNK or CHUNK, n + 1, CHUNK)])  # the last chunk is whole
    means = np.add.reduceat(pooled, bounds[:-1]) / np.diff(bounds)
    means[[0, -1]] = np.inf
    chosen = np.sort(np.argsort(-means, kind="stable")[: max(2, math.ceil(share * n / CHUNK))])
    return [at for i in chosen.tolist() for at in range(bounds[i], bounds[i + 1])]


def compute_part_of_prompts(target: Backend, draft: Backend | None, share: float) -> None:
    """Let the target compute this share of each long prompt, chosen by a draft of the same vocabulary.
    Raises UsageError if the target cannot leave out tokens, or the draft does not show its attention."""
    if not isinstance(target, SelectsPromptTokens) or not target.caps.sparse_prompts:
        raise UsageError(
            f"lossy prefill: {target.path}: no prompt tokens can be left out for recurrent models, models "
            "with an attention window, passes of one shape (exact_greedy) and, in llama.cpp, a cache of bf16 "
            "(cache_type) and scaled rotary embeddings (YaRN)"
        )
    if not isinstance(draft, ShowsAttention):
        raise UsageError(
            "lossy prefill: a draft model has to say which prompt tokens matter: give one (draft, -md) that "
            "is no view or head"
        )
    target.prompt_selector = AttentionSelector(draft, share)


class AttentionSelector:
    """Selects a share of each prompt by the attention of a draft model."""

    def __init__(self, draft: ShowsAttention, share: float) -> None:
        self._draft, self.share = draft, share

    @property
    def description(self) -> str:
        return f"with {100 * self.share:.3g}% of a long prompt"

    def select(self, prompt: Sequence[int]) -> Sequence[int]:
        """See PromptSelector."""
        if len(prompt) <= SHORT:
            return range(len(prompt))
        read = self._draft.vocab.known(prompt)
        return select_chunks(self._draft.prompt_attention(read, LOOK_AHEAD), self.share)
