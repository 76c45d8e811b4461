"""What the sampled check decodes with, and after what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.arrays import Probabilities
from paceline.core.ports import Budget, Drafter
from paceline.core.sampling import Sampling, probabilities
from paceline.lab.certify.held import HeldTarget, Place


@dataclass(frozen=True)
class Context:
    """tokens: what was said before, of the text of that number. row: the recorded row that follows."""

    tokens: Sequence[int]
    row: int
    text: int = 0


@dataclass(frozen=True)
class Loop:
    """place: that `target`, and the draft model if there is one, answer from. rule: of verification."""

    target: HeldTarget
    drafter: Drafter
    place: Place
    budget: Budget
    sampling: Sampling
    rule: str

    def p(self, context: Context, after: Sequence[int] = (), overlooked: int = 0) -> Probabilities:
        """What plain sampling draws from behind `context` and the tokens `after` it, of which the penalties
        overlook so many."""
        self.place.at = context.row
        row = self.target.rows[self.place.row(after, len(self.target.rows))]
        history = [*context.tokens, *after]
        return probabilities(row, self.sampling, history[: len(history) - overlooked])
