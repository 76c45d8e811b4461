"""Plain decoding: the drafter that never guesses."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Budget, Features, RequiredOutputs, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree


class NoState:
    def update(self, step: Step, features: Features) -> None:
        """Nothing to remember."""

    def close(self) -> None:
        """Nothing is held."""


class NoDrafter:
    name = "none"
    required_outputs = RequiredOutputs()

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NoState:
        return NoState()

    def propose(self, batch: Sequence[tuple[NoState, Budget]]) -> list[DraftTree]:
        return [EMPTY] * len(batch)

    def close(self) -> None:
        """Nothing is held."""


def make(_: DrafterInputs) -> NoDrafter:
    return NoDrafter()
