"""A draft tree by best-first search: of all paths that may go on, the likeliest is drafted next."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, TypeVar

from paceline.speculative.interfaces import Budget
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

State = TypeVar("State")


def best_first(
    budget: Budget,
    source: str,
    start: State,
    follow: Callable[[State, int], Iterable[tuple[int, float, State]]],
) -> DraftTree:
    """follow: what may come after a path of that state and length, the likeliest first: a token, its score,
    and the state with it. The first goes on with its parent's path; each other one is a branch, of which the
    tree has at most `budget.width`."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    leaves, order = 1, count()  # of equals the one that came first
    # (-reach probability, order, parent, depth, rank among its siblings, token, score, state)
    waiting: list[tuple[float, int, int, int, int, int, float, Any]] = []

    def offer(parent: int, depth: int, reach_probability: float, state: State) -> None:
        for rank, (token, score, after) in enumerate(follow(state, depth)):
            heapq.heappush(
                waiting, (-reach_probability * score, next(order), parent, depth, rank, token, score, after)
            )

    offer(ROOT, 0, 1.0, start)
    while waiting and len(tokens) < budget.nodes:
        negative, _, parent, depth, rank, token, score, after = heapq.heappop(waiting)
        if rank > 0 and leaves >= budget.width:
            continue
        leaves += rank > 0
        tokens.append(token)
        parents.append(parent)
        scores.append(score)
        if depth + 1 < budget.depth:
            offer(len(tokens) - 1, depth + 1, -negative, after)
    if not tokens:
        return EMPTY
    return DraftTree(tuple(tokens), tuple(parents), tuple(scores), (source,) * len(tokens))
