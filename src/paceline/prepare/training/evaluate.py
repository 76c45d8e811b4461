"""The acceptance of a head on recorded answers of its target, without running the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.session import HeadSession
from paceline.prepare.training.features import Recorded, TrainingSequence

TEMPERATURES = np.geomspace(0.25, 8.0, 41)
MAX_CALIBRATED_ROWS = 4096
Agreement = NDArray[np.bool_]  # of an answer's tokens: drafted behind the tokens before it
Drafts = tuple[TrainingSequence, Agreement]


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


def walk(
    sequences: Recorded,
    accepted_of: Callable[[TrainingSequence], Callable[[int], int]],
    n_draft: int,
    *,
    reads_target: bool = False,
) -> Acceptance:
    """Verify drafts along the answers, as greedy decoding does; no token is drafted behind an answer.
    reads_target: the first step has no draft, as the target computes the prompt's last states in it.
    accepted_of: returns a function of the number of committed tokens, which grows from call to call; its
    value is how many of up to `n_draft` drafted tokens equal the text behind."""
    reached, accepted = np.zeros(n_draft, np.int64), np.zeros(n_draft, np.int64)
    steps = emitted = 0
    for one in sequences:
        draft, n = accepted_of(one), min(len(one.tokens), one.first_answer + reads_target)
        steps, emitted = steps + reads_target, emitted + n - one.first_answer
        while n < len(one.tokens):
            most = min(n_draft, len(one.tokens) - n - 1)
            k = min(draft(n), most)
            reached[: min(k + 1, most)] += 1
            accepted[:k] += 1
            steps, emitted, n = steps + 1, emitted + k + 1, n + k + 1
    return Acceptance(emitted, steps, tuple(reached.tolist()), tuple(accepted.tolist()))


def draft_along(
    one: TrainingSequence, session: Any, n_draft: int, is_right: Callable[[list[int], int], bool]
) -> Callable[[int], int]:
    """Return a function as `accepted_of` of `walk` does, for chains that a session drafts greedily.
    is_right: whether the token drafted after some others is this one."""
    tokens, known = one.tokens.tolist(), 0

    def accepted(n: int) -> int:
        nonlocal known
        session.extend(tokens[len(session.tokens) : n])
        if isinstance(session, HeadSession):
            session.observe(known, one.hidden[known : n - 1].astype(np.float32))
            known = n - 1
        end = n + min(n_draft, len(tokens) - n - 1)
        k = n
        while k < end and is_right(tokens[n:k], tokens[k]):
            k += 1
        if k + 1 >= len(tokens):
            session.close()
        return k - n

    return accepted


def acceptance_of_drafts(drafts: Sequence[Drafts], n_draft: int, reads_target: bool) -> Acceptance:
    """Return the acceptance of chains, each right as long as its tokens are those of the answer."""
    agreement = iter([agrees for _, agrees in drafts])

    def accepted(one: TrainingSequence) -> Callable[[int], int]:
        right, first = next(agreement), one.first_answer
        return lambda n: int(np.argmin(np.append(right[n - first : n - first + n_draft], False)))

    return walk((one for one, _ in drafts), accepted, n_draft, reads_target=reads_target)


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
