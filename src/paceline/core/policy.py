"""Who decides how much is drafted. Drafters propose; the policy decides.

fixed   the same budget at every step
p_min   the same, and drafters stop where they are less sure than that
rate    what pays by what is measured (rate.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from paceline.core.ports import Budget
from paceline.core.record import Step
from paceline.core.tree import DraftTree

if TYPE_CHECKING:
    from paceline.core.decode import Request


class Policy(Protocol):
    def budgets(self, requests: Sequence[Request]) -> Sequence[Budget]: ...

    def choose(
        self, requests: Sequence[Request], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        """What is verified of what was proposed, within the budgets. Of a sampled draft nothing may be left
        out: what is kept would depend on what was drawn."""

    def observe(self, requests: Sequence[Request], steps: Sequence[Step]) -> None:
        """One step of each."""


class Fixed:
    """The rules fixed and p_min, which its budget tells apart."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def budgets(self, requests: Sequence[Request]) -> list[Budget]:
        return [self._budget] * len(requests)

    def choose(
        self, requests: Sequence[Request], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        return list(drafts)

    def observe(self, requests: Sequence[Request], steps: Sequence[Step]) -> None:
        """Nothing to learn: the numbers are fixed."""
