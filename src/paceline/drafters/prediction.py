"""Predicted outputs (OpenAI's `prediction`): a request says what its answer will be, such as an edited file.

The draft continues the prediction behind the output. Where the output leaves it, a token counts as replaced,
until two or more of the output's last tokens occur in the prediction: there it goes on, after the longest
match, of ties at the next place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.drafters.compose import Resting
from paceline.drafters.parts import DrafterInputs, SingleDrafter
from paceline.speculative.interfaces import UNLIMITED, Budget, Features, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree, chain

MAX_MATCH_TOKENS = 16


class PredictionState(Resting):
    """The place in the prediction. Without one it rests, and the drafter is not called.
    matched, missed: tokens of the output in a row that were as predicted, or were not."""

    max_idle, can_wake = 0, False

    def __init__(self) -> None:
        self.predicted = np.zeros(0, np.int64)
        self.output: list[int] = []
        self.at = self.matched = self.missed = 0

    def predict(self, tokens: Sequence[int]) -> None:
        self.max_idle, self.predicted = UNLIMITED, np.array(tokens)

    def update(self, step: Step, features: Features) -> None:
        for token in step.tokens if len(self.predicted) else ():
            self.output.append(token)
            if self.at < len(self.predicted) and self.predicted[self.at] == token:
                self.at, self.matched, self.missed = self.at + 1, self.matched + 1, 0
            else:
                self._realign()

    def _realign(self) -> None:
        places, n = np.flatnonzero(self.predicted == self.output[-1]) + 1, 1
        while n < min(MAX_MATCH_TOKENS, len(self.output)):
            longer = places[places > n]
            longer = longer[self.predicted[longer - 1 - n] == self.output[-1 - n]]
            if not len(longer):
                break
            places, n = longer, n + 1
        if n == 1:
            self.at, self.matched, self.missed = self.at + 1, 0, self.missed + 1
        else:
            following = places[np.searchsorted(places, self.at) % len(places)]
            self.at, self.matched, self.missed = int(following), n, 0

    def close(self) -> None:
        self.predicted = self.predicted[:0]


class PredictionDrafter(SingleDrafter):
    """A drafter that copies from the prediction of the request."""

    name = "prediction"

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> PredictionState:
        return PredictionState()

    def _draft(self, state: PredictionState, budget: Budget) -> DraftTree:
        score = (state.matched + 1) / (state.matched + 2 + state.missed)
        length = 0 if score < budget.p_min else min(budget.depth, budget.nodes)
        copied = state.predicted[state.at : state.at + length].tolist()
        return chain(copied, self.name, score=[score] * len(copied))


def make(_: DrafterInputs) -> PredictionDrafter:
    return PredictionDrafter()
