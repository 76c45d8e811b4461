"""Plain decoding: the drafter that never guesses."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Budget, RequiredOutputs, Session
from paceline.speculative.request import NoDrafterState
from paceline.speculative.tree import EMPTY, DraftTree


class NoDrafter:
    """A drafter without guesses."""

    name = "none"
    required_outputs = RequiredOutputs()

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NoDrafterState:
        return NoDrafterState()

    def propose(self, batch: Sequence[tuple[NoDrafterState, Budget]]) -> list[DraftTree]:
        return [EMPTY] * len(batch)

    def close(self) -> None: ...


def make(_: DrafterInputs) -> NoDrafter:
    return NoDrafter()
