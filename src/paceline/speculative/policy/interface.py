"""The draft policy decides how much is drafted; drafters only propose.

fixed   the same budget at every step
p_min   the same, and drafters stop at tokens less likely than p_min
rate    what pays by measured costs and learned acceptance (goodput.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.ledger import DraftingSummary
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree


class DraftPolicy(Protocol):
    """A rule for how much to draft at each step."""

    @property
    def learns(self) -> bool:
        """True if requests change how later requests are drafted for."""

    def forget(self) -> None:
        """Drop what was learned from requests."""

    @property
    def summary(self) -> DraftingSummary | None:
        """Statistics of the decisions so far."""

    @property
    def costs(self) -> DecodingCosts | None:
        """The costs of passes, if the policy measures them."""

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> Sequence[Budget]:
        """Return a budget for each request. prefill_tokens: prompt tokens of the same pass."""

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        """Return the part of each draft to verify. Sampled drafts must be returned whole."""

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        """Learn from one step of each request."""


class FixedPolicy:
    """The rules fixed and p_min: a constant budget."""

    learns = False
    summary = None
    costs = None

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def forget(self) -> None: ...

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> list[Budget]:
        return [self._budget] * len(requests)

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        return [truncate_tree(d, b) if d.votes else d for d, b in zip(drafts, budgets, strict=True)]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None: ...


def likeliest(draft: DraftTree, reach_probability: Sequence[float], budget: Budget) -> Sequence[int]:
    """Return the nodes that fit the budget with their parents, by descending reach probability."""
    if draft.is_chain and not draft.probe:  # already in descending order
        return range(min(len(draft.tokens), budget.nodes, budget.depth) if budget.width > 0 else 0)
    order = sorted(range(len(draft)), key=reach_probability.__getitem__, reverse=True)  # parents first
    if fits_budget(draft, budget):
        return order  # the common case
    parents, depths = draft.parents, draft.depths()
    selected: list[int] = []
    inner: set[int] = set()
    included, leaves = {ROOT}, 0
    for node in order:
        if len(selected) == budget.nodes:
            break
        parent = parents[node]
        branches = parent in inner or not selected
        if parent in included and depths[node] <= budget.depth and leaves + branches <= budget.width:
            leaves += branches
            included.add(node)
            inner.add(parent)
            selected.append(node)
    return selected


def fits_budget(draft: DraftTree, budget: Budget) -> bool:
    """Return whether the whole draft is within the budget."""
    if draft.is_chain:
        return len(draft.tokens) <= min(budget.nodes, budget.depth) and (budget.width > 0 or not draft.tokens)
    n, parents = len(draft), set(draft.parents)
    leaves = n + (ROOT in parents) - len(parents)
    return n <= budget.nodes and leaves <= budget.width and max(draft.depths(), default=0) <= budget.depth


def truncate_tree(draft: DraftTree, budget: Budget) -> DraftTree:
    """Return the likeliest nodes that fit the budget."""
    selected = likeliest(draft, draft.reach_probability, budget)
    return draft.subset(sorted(selected), draft.reach_probability)
