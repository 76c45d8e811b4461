"""Plain decoding: the drafter that never guesses."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.parts import DrafterInputs, SingleDrafter
from paceline.speculative.interfaces import Budget, Session
from paceline.speculative.request import NoDrafterState
from paceline.speculative.tree import EMPTY, DraftTree


class NoDrafter(SingleDrafter):
    """A drafter without guesses."""

    name = "none"

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NoDrafterState:
        return NoDrafterState()

    def _draft(self, state: NoDrafterState, budget: Budget) -> DraftTree:
        return EMPTY


def make(_: DrafterInputs) -> NoDrafter:
    return NoDrafter()
