"""The budget through which drafters ask the decision rule (rate.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.core.ports import Budget
from paceline.core.tree import DraftTree


class Call:
    """The drafter that is being called for one proposal ("" for none), since when, what the draft was worth
    before, in tokens, and at which kind of step (gain.py). levels: that it has computed so far. nodes: minus
    the survivals of what it has drafted, ascending. reads: it had much to read first."""

    __slots__ = ("before", "drafter", "kind", "levels", "nodes", "reads", "since")

    def __init__(self) -> None:
        self.begin("", 0.0, 0.0, 0)

    def begin(self, drafter: str, since: float, before: float, kind: int, reads: bool = False) -> None:
        self.drafter, self.since, self.before, self.kind, self.reads = drafter, since, before, kind, reads
        self.levels = 0
        self.nodes: list[float] = []


@dataclass(frozen=True, slots=True)
class RateBudget(Budget):
    """It belongs to one proposal. track: the request's record. brake: nothing may be lost."""

    policy: Any = None  # Rate; slots and defaults
    track: Any = None
    brake: bool = False
    call: Call = field(default_factory=Call)

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return bool(self.policy.should_call(self, drafter, draft, behind))

    def survival(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        recent = self.track.recent.get(drafter, 0.0)
        return float(parent * self.policy.belief.of(drafter).probability(likely, depth, recent))

    def goes_on(self, likeliest: float, drafted: int, depth: int, survival: float = 1.0) -> bool:
        return drafted < self.nodes and depth < self.depth and survival >= self.policy.least

    def deepens(self, drafted: int, depth: int, survival: float) -> bool:
        return depth < self.depth and bool(self.policy.deepens(self, depth, survival))
