"""Plain decoding: the drafter that never guesses."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.parts import Parts
from paceline.speculative.interfaces import Budget, Features, Session, Want
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree


class NoMemory:
    def observe(self, step: Step, features: Features) -> None:
        """Nothing to remember."""

    def close(self) -> None:
        """Nothing is held."""


class NoDrafter:
    name = "none"
    wants = Want()

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NoMemory:
        return NoMemory()

    def propose(self, batch: Sequence[tuple[NoMemory, Budget]]) -> list[DraftTree]:
        return [EMPTY] * len(batch)

    def close(self) -> None:
        """Nothing is held."""


def make(_: Parts) -> NoDrafter:
    return NoDrafter()
