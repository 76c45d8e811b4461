"""Shared parts of drafters: the inputs of each `make`, counts by scope, and best-first search."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from paceline.heads.confidence import Confidence
from paceline.settings import Drafting
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, Target
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from paceline.vocab.translation import Translation

T = TypeVar("T")
State = TypeVar("State")
MAX_SCOPES = 64  # beyond it the least recently used scope is dropped
Warn = Callable[[str], None]
MODEL_SOURCE = "model"


@dataclass(frozen=True)
class DrafterInputs:
    """The inputs from which drafters are made."""

    drafting: Drafting
    target: Target
    draft: Target | None = None  # in the target's vocabulary unless there is a `translation`
    translation: Translation | None = None  # for a draft model that drafts text (SLEM)
    caches: tuple[Path, ...] = ()  # n-gram caches in llama.cpp's format
    stores: tuple[Path, ...] = ()  # folders of suffix arrays
    costs: DecodingCosts | None = None  # measured pass costs, if known
    confidence: Confidence | None = None  # scores the draft model's tokens, if one was trained for it
    warn: Warn = lambda _: None  # called with messages about a broken draft model

    @property
    def model_settings(self) -> dict[str, Any]:
        """The settings of a ModelDrafter."""
        return {
            "temperature": self.drafting.draft_temp,
            "top_k": self.drafting.draft_top_k,
            "confidence": self.confidence,
            "warn": self.warn,
        }


class SingleDrafter:
    """The base of drafters without a model: each request is drafted for by itself."""

    required_outputs = NO_OUTPUTS

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [self._draft(state, budget) for state, budget in batch]

    def _draft(self, state: Any, budget: Budget) -> DraftTree:
        """Return the proposal for one request."""
        raise NotImplementedError

    def close(self) -> None: ...


class Scopes(Generic[T]):
    """The learned data of a drafter, by the scope of requests (Drafter.open).
    common: the entry of the scope "". make: creates the entry of another scope."""

    def __init__(self, common: T, make: Callable[[], T], most: int = MAX_SCOPES) -> None:
        self.common, self._make, self._most = common, make, most
        self._others: OrderedDict[str, T] = OrderedDict()

    def of(self, scope: str) -> T:
        """Return the entry of a scope, created if needed."""
        if not scope:
            return self.common
        entry = self._others.pop(scope, None)
        if entry is None:
            entry = self._make()
        self._others[scope] = entry
        if len(self._others) > self._most:
            self._others.popitem(last=False)
        return entry

    def __iter__(self) -> Iterator[T]:
        yield self.common
        yield from self._others.values()


def best_first(
    budget: Budget,
    source: str,
    start: State,
    follow: Callable[[State, int], Iterable[tuple[int, float, State]]],
) -> DraftTree:
    """Return the tree of the likeliest paths, grown one node at a time.
    follow: returns (token, score, state with it) for what may follow a path's state and length, likeliest
        first. The first continues the path; each other one is a branch that counts against `budget.width`."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    leaves, order = 1, count()  # ties go to the earlier entry
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
