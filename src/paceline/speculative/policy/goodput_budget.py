"""The budget through which drafters ask the decision rule (goodput.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.acceptance_model import Recent
from paceline.speculative.tree import DraftTree


class DrafterCall:
    """The drafter that is being called for one proposal ("" for none), since when, what the draft was worth
    before, in tokens, and at which kind of step (drafter_value.py). levels: that it has computed so far.
    nodes: minus the reach probabilities of what it has drafted, ascending. reads: it had much to read
    first."""

    __slots__ = ("before", "drafter", "kind", "levels", "nodes", "reads", "since")

    def __init__(self) -> None:
        self.begin("", 0.0, 0.0, 0)

    def begin(self, drafter: str, since: float, before: float, kind: int, reads: bool = False) -> None:
        self.drafter, self.since, self.before, self.kind, self.reads = drafter, since, before, kind, reads
        self.levels = 0
        self.nodes: list[float] = []


@dataclass
class LossLedger:
    """The record of one request.

    recent: how often each drafter was right of late.
    lost: seconds that the drafts took beyond what they saved.
    plain: seconds that the prompt took and plain decoding of the text would have taken.
    missed: seconds that a drafter which has not read the text might have saved since its last call."""

    recent: Recent = field(default_factory=dict)
    lost: float = 0.0
    plain: float = 0.0
    missed: float = 0.0

    def brakes(self, share: float, credit: float) -> bool:
        """Whether the loss exceeds a share of the plain time, and a credit in seconds."""
        return self.lost > share * self.plain + credit


class BudgetRule(Protocol):
    """What a GoodputBudget asks of the rule that gave it."""

    @property
    def least(self) -> float:
        """The reach probability below which no guess can pay for a row."""

    def should_call(
        self, budget: GoodputBudget, drafter: str, draft: Callable[[], DraftTree], behind: int
    ) -> bool: ...

    def reach(self, track: LossLedger, drafter: str, likely: float, depth: int, parent: float) -> float: ...

    def deepens(self, budget: GoodputBudget, depth: int, reach_probability: float) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputBudget(Budget):
    """The budget of one proposal. brake: nothing may be lost."""

    rule: BudgetRule
    track: LossLedger
    brake: bool = False
    call: DrafterCall = field(default_factory=DrafterCall)

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return self.rule.should_call(self, drafter, draft, behind)

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        return self.rule.reach(self.track, drafter, likely, depth, parent)

    def goes_on(self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0) -> bool:
        return drafted < self.nodes and depth < self.depth and reach_probability >= self.rule.least

    def deepens(self, drafted: int, depth: int, reach_probability: float) -> bool:
        return depth < self.depth and self.rule.deepens(self, depth, reach_probability)
