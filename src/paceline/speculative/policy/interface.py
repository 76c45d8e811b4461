"""Who decides how much is drafted. Drafters propose; the policy decides.

fixed   the same budget at every step
p_min   the same, and drafters stop where they are less sure than that
rate    what pays by what is measured (goodput.py)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.drafting_summary import DraftingSummary
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree


class DraftPolicy(Protocol):
    @property
    def learns(self) -> bool:
        """Whether one request changes how the next is drafted for."""

    def forget(self) -> None:
        """What it has learned from requests."""

    @property
    def summary(self) -> DraftingSummary | None:
        """What it has to say for itself."""

    def budget(self, requests: Sequence[ActiveRequest], reading: int = 0) -> Sequence[Budget]:
        """How much may be drafted for each. reading: rows of prompts in the same pass."""

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        """What is verified of the drafts, within the budgets. Of a sampled draft nothing may be left out."""

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        """One step of each."""


class FixedPolicy:
    """The rules fixed and p_min, which its budget tells apart."""

    learns = False
    summary = None

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def forget(self) -> None:
        """The numbers stay."""

    def budget(self, requests: Sequence[ActiveRequest], reading: int = 0) -> list[Budget]:
        return [self._budget] * len(requests)

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        return [truncate_tree(d, b) if d.votes else d for d, b in zip(drafts, budgets, strict=True)]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        """Nothing to learn: the numbers are fixed."""


def most_probable(draft: DraftTree, reach_probability: Sequence[float]) -> Sequence[int]:
    """The likeliest node first, each after its parent."""
    nodes = range(len(reach_probability))
    if draft.is_chain and not draft.probe:
        return nodes  # of which none is likelier than the one before
    return sorted(nodes, key=reach_probability.__getitem__, reverse=True)


def within_limits(order: Sequence[int], draft: DraftTree, budget: Budget) -> Sequence[int]:
    """Those nodes of `order`, the likeliest first, that there is room for, each with its parent."""
    if fits_tree(draft, budget):
        return order  # as nearly always
    parents, depths = draft.parents, draft.depths()
    selected, there, bearing, leaves = list[int](), {ROOT}, set[int](), 0
    for node in order:
        if len(selected) == budget.nodes:
            break
        parent = parents[node]
        branches = parent in bearing or not selected
        if parent in there and depths[node] <= budget.depth and leaves + branches <= budget.width:
            leaves += branches
            there.add(node)
            bearing.add(parent)
            selected.append(node)
    return selected


def fits_tree(draft: DraftTree, budget: Budget) -> bool:
    """Whether all of it is within the budget."""
    if draft.is_chain:
        return len(draft.tokens) <= min(budget.nodes, budget.depth) and (budget.width > 0 or not draft.tokens)
    n, parents = len(draft), set(draft.parents)
    leaves = n + (ROOT in parents) - len(parents)
    return n <= budget.nodes and leaves <= budget.width and max(draft.depths(), default=0) <= budget.depth


def truncate_tree(draft: DraftTree, budget: Budget) -> DraftTree:
    """The likeliest nodes that fit the budget."""
    selected = within_limits(most_probable(draft, draft.reach_probability), draft, budget)
    return draft if len(selected) == len(draft) else draft.subset(sorted(selected), draft.reach_probability)
