"""A draft in the making, and the budget through which its drafters ask the policy (rate.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.core.ports import Budget
from paceline.core.tree import DraftTree


class Proposal:
    """One request's draft in the making.

    name, since: the drafter that is being asked, and since when. before, kind: what the draft was worth
    before it, and how sure it was; probe: whether it is asked without being expected to pay.
    deepest: levels that it has computed so far; nodes: minus the survivals of what it has drafted, ascending.
    """

    __slots__ = ("before", "deepest", "kind", "name", "nodes", "probe", "since")

    def __init__(self) -> None:
        self.name = ""
        self.asks("", 0.0)

    def asks(self, name: str, now: float, before: float = 0.0, kind: int = 0, probe: bool = False) -> None:
        self.name, self.since, self.before, self.kind, self.probe = name, now, before, kind, probe
        self.deepest = 0
        self.nodes: list[float] = []


@dataclass(frozen=True, slots=True)
class RateBudget(Budget):
    """A budget that asks the policy. It belongs to one proposal."""

    policy: Any = None  # Rate; slots and defaults
    mood: Any = None
    proposal: Any = None

    def asks(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        return bool(self.policy.asks(self, drafter, draft))

    def survival(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        mood = self.mood.get(drafter, 0.0)
        return float(parent * self.policy.belief.of(drafter).probability(likely, depth, mood))

    def goes_on(self, likeliest: float, drafted: int, depth: int, survival: float = 1.0) -> bool:
        return drafted < self.nodes and depth < self.depth and survival >= self.policy.slightest

    def deepens(self, drafted: int, depth: int, survival: float) -> bool:
        return depth < self.depth and bool(self.policy.deepens(self, depth, survival))
