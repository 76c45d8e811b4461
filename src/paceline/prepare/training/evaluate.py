"""The acceptance of a head on recorded answers of its target, without running the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.session import HeadSession
from paceline.prepare.training.features import TrainingSequence

TEMPERATURES = np.geomspace(0.25, 8.0, 41)
MAX_CALIBRATED_ROWS = 4096
Agreement = NDArray[np.bool_]  # of an answer's tokens: drafted behind the tokens before it
# An answer, and how many drafted tokens are right behind so many of its tokens, which grow from call to call.
Draft = tuple[TrainingSequence, Callable[[int], int]]


@dataclass(frozen=True)
class Acceptance:
    """Greedy chains of a fixed length, verified against the recorded answers.
    tokens, steps: emitted tokens, and the target's passes. reached, accepted: drafts by position."""

    tokens: int
    steps: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def length(self) -> float:
        """Tokens per step, the target's own token included."""
        return self.tokens / max(1, self.steps)

    @property
    def by_position(self) -> list[float]:
        """The acceptance rate at each position, given that the drafts before it were accepted."""
        return [a / max(1, r) for a, r in zip(self.accepted, self.reached, strict=True)]


def walk(drafts: Iterable[Draft], n_draft: int, *, reads_target: bool = False) -> Acceptance:
    """Verify drafts along the answers, as greedy decoding does; no token is drafted behind an answer.
    reads_target: the first step has no draft, as the target computes the prompt's last states in it."""
    reached, accepted = np.zeros(n_draft, np.int64), np.zeros(n_draft, np.int64)
    steps = emitted = 0
    for sequence, right in drafts:
        total = len(sequence.tokens) - sequence.first_answer
        at = min(total, int(reads_target))
        steps, emitted = steps + reads_target, emitted + at
        while at < total:
            limit = min(n_draft, total - at - 1)
            k = min(right(at), limit)
            reached[: min(k + 1, limit)] += 1
            accepted[:k] += 1
            steps, emitted, at = steps + 1, emitted + k + 1, at + k + 1
    return Acceptance(emitted, steps, tuple(reached.tolist()), tuple(accepted.tolist()))


def draft_along(
    sequence: TrainingSequence, session: Any, n_draft: int, is_right: Callable[[list[int], int], bool]
) -> Callable[[int], int]:
    """Return how many tokens of chains are right, as for a Draft, which a session drafts greedily.
    is_right: whether the token drafted after some others is this one."""
    tokens, known = sequence.tokens.tolist(), 0

    def right(at: int) -> int:
        nonlocal known
        n = sequence.first_answer + at
        session.extend(tokens[len(session.tokens) : n])
        if isinstance(session, HeadSession):
            session.observe(known, sequence.hidden[known : n - 1].astype(np.float32))
            known = n - 1
        end = n + min(n_draft, len(tokens) - n - 1)
        k = n
        while k < end and is_right(tokens[n:k], tokens[k]):
            k += 1
        if k + 1 >= len(tokens):
            session.close()
        return k - n

    return right


def run_lengths(agrees: Agreement) -> NDArray[np.int64]:
    """Return how many tokens from each one on are right, for chains that are so as long as each token is."""
    positions = np.arange(len(agrees))
    wrong = np.where(agrees, len(agrees), positions)
    return np.minimum.accumulate(wrong[::-1])[::-1] - positions


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
