"""The acceptance of a head on recorded answers of its target, without running the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.session import open_session
from paceline.prepare.training.batches import DraftVocabulary
from paceline.prepare.training.features import TrainingSequence
from paceline.speculative.tree import chain


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


Agreement = NDArray[np.bool_]  # of an answer's tokens: the head drafts it behind the tokens before it


def acceptance_of_agreement(agreement: Iterable[Agreement], n_draft: int) -> Acceptance:
    """Return what drafting along answers gives if drafts depend on the tokens before them only.
    Of an answer the first token is the root."""
    reached, accepted = np.zeros(n_draft, np.int64), np.zeros(n_draft, np.int64)
    steps = emitted = 0
    for agrees in agreement:
        at, n = 1, len(agrees)
        while at < n:
            some = agrees[at : at + n_draft]
            kept = len(some) if some.all() else int(some.argmin())
            reached[: min(kept + 1, len(some))] += 1
            accepted[:kept] += 1
            end = min(n, at + kept + 1)
            steps, emitted, at = steps + 1, emitted + end - at, end
    return Acceptance(emitted, steps, tuple(reached.tolist()), tuple(accepted.tolist()))


def acceptance_of(
    head: Any,
    embed: Callable[[Sequence[int]], Any],
    vocabulary: DraftVocabulary,
    sequences: Iterable[TrainingSequence],
    n_draft: int,
) -> Acceptance:
    """Draft along the answers as decoding does. head: a network with numpy weights."""
    depth = min(n_draft, head.config.depth or n_draft)
    reached, accepted = np.zeros(depth, np.int64), np.zeros(depth, np.int64)
    steps = emitted = 0
    for one in sequences:
        tokens = one.tokens.tolist()
        session = open_session(head, embed, np.zeros(0, np.float32), len(tokens) + depth + 1)
        known = 0
        n = max(2, one.first_answer)
        session.extend(tokens[:n])
        while n < len(tokens):
            session.observe(known, one.hidden[known : n - 1].astype(np.float32))
            known = n - 1
            drafted: list[int] = []
            while len(drafted) < depth:
                _, rows = session.compute(chain(drafted, head.config.kind))
                token = int(vocabulary.ids[int(rows[len(drafted)].argmax())])
                reached[len(drafted)] += 1
                if n + len(drafted) >= len(tokens) or token != tokens[n + len(drafted)]:
                    break
                accepted[len(drafted)] += 1
                drafted.append(token)
            end = min(len(tokens), n + len(drafted) + 1)
            steps, emitted = steps + 1, emitted + end - n
            session.extend(tokens[n:end])
            n = end
    return Acceptance(emitted, steps, tuple(reached.tolist()), tuple(accepted.tolist()))
