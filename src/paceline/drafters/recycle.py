"""Token Recycling: what the target thought might follow a token, the last time it computed a row for it
(Luo et al., arXiv:2408.08696).

Every verified node, accepted or not, leaves its row's likeliest tokens in a table with one line a token. A
draft is read off that table from the last token down, best path first. Two things are not in the paper.
Before a token's line comes what followed it in the request's own text: where the two agree they are right
three times in four, where they do not, each is once in four. And the tree is not one fixed by hand: how often
each place of a line was right is counted while decoding, and its shape follows from that and the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from paceline.core.ports import Budget, Features, Session, Want
from paceline.core.record import Step
from paceline.core.tree import EMPTY, ROOT, DraftTree

TOP_K = 8
UNKNOWN = -1
# How what followed a token in the text stands to the token's line: the line's first, one of the others, none
# of them; or the token was not followed by anything yet.
FIRST, AMONG, NEW, ALONE = range(4)
# How often each place is believed to be right before anything is counted, as if seen so many times.
PRIOR = 8.0
RATES = (
    (0.75, 0.06, 0.03, 0.02, 0.01, 0.01, 0.01, 0.01, 0.01),
    (0.40, 0.25, 0.08, 0.04, 0.02, 0.02, 0.01, 0.01, 0.01),
    (0.25, 0.25, 0.10, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.45, 0.10, 0.05, 0.03, 0.02, 0.02, 0.02, 0.01, 0.01),
)


class RecycleMemory:
    """Owns the last token of one request's text, and what followed each token in it most recently."""

    def __init__(self, drafter: RecycleDrafter, prompt: Sequence[int]) -> None:
        self._drafter = drafter
        self.root = prompt[-1]
        self._followed = dict(pairwise(prompt))

    def candidates(self, token: int) -> tuple[list[int], int]:
        """What may follow `token`, likeliest first, and how text and table agree."""
        line = self._drafter.line(token)
        followed = self._followed.get(token)
        if followed is None:
            return line, ALONE
        if followed not in line:
            return [followed, *line], NEW
        if line[0] == followed:
            return line, FIRST
        line.remove(followed)
        return [followed, *line], AMONG

    def observe(self, step: Step, features: Features) -> None:
        self._drafter.learn_rates(self, step)
        if features.top_k is not None:
            self._drafter.recycle([self.root, *step.tree.tokens], features.top_k)
        for token in step.tokens:
            self._followed[self.root] = token
            self.root = token

    def close(self) -> None:
        self._followed.clear()


class RecycleDrafter:
    """n_vocab: the target's vocabulary. All requests share the table, 32 bytes a token, and the counts."""

    name = "recycle"
    wants = Want(top_k=TOP_K)

    def __init__(self, n_vocab: int) -> None:
        self._table: NDArray[np.int32] = np.empty((n_vocab, TOP_K), dtype=np.int32)
        self.forget()

    def open(self, prompt: Sequence[int], seed: int, session: Session | None = None) -> RecycleMemory:
        return RecycleMemory(self, prompt)

    def propose(self, batch: Sequence[tuple[RecycleMemory, Budget]]) -> list[DraftTree]:
        return [self._grow(memory, budget) for memory, budget in batch]

    def _grow(self, memory: RecycleMemory, budget: Budget) -> DraftTree:
        """Best first: with each node taken, its first child and its next sibling become candidates."""
        tokens: list[int] = []
        parents: list[int] = []
        score: list[float] = []
        leaves = 1
        order = count()  # of equals the one that was offered first
        # (-chance of the path, order, -chance of the path above, parent, depth, place, line, its rates)
        waiting: list[tuple[float, int, float, int, int, int, list[int], list[float]]] = []

        def offer(
            above: float, parent: int, depth: int, place: int, line: list[int], rates: list[float]
        ) -> None:
            if place < len(line):
                chance = above * rates[place]
                heappush(waiting, (chance, next(order), above, parent, depth, place, line, rates))

        def expand(chance: float, node: int, depth: int, token: int) -> None:
            if depth < budget.depth:
                line, case = memory.candidates(token)
                offer(chance, node, depth + 1, 0, line, self._rates[case])

        expand(-1.0, ROOT, 0, memory.root)
        while waiting and len(tokens) < budget.nodes:
            chance, _, above, parent, depth, place, line, rates = heappop(waiting)
            if place > 0:  # a first child continues a path, every other one opens one
                if leaves == budget.width:
                    continue
                leaves += 1
            tokens.append(line[place])
            parents.append(parent)
            score.append(rates[place])
            expand(chance, len(tokens) - 1, depth, line[place])
            offer(above, parent, depth, place + 1, line, rates)
        if not tokens:
            return EMPTY
        return DraftTree(tuple(tokens), tuple(parents), tuple(score), (self.name,) * len(tokens))

    def line(self, token: int) -> list[int]:
        line: list[int] = self._table[token].tolist()
        return line if line[-1] != UNKNOWN else [token for token in line if token != UNKNOWN]

    def recycle(self, tokens: Sequence[int], top: NDArray[np.int64]) -> None:
        """Keep the rows of the root and of every node; of equal tokens the last one's. A row beside the true
        text is worth as much as one in it: the true text is what `_followed` remembers."""
        k = min(TOP_K, top.shape[1])
        known = top[: len(tokens), 0] != UNKNOWN  # a record does not tell what follows beside it
        self._table[np.array(tokens)[known], :k] = top[: len(tokens)][known, :k]

    def learn_rates(self, memory: RecycleMemory, step: Step) -> None:
        """Which place was right after each token that the target confirmed."""
        if self.name not in step.tree.source:
            return  # another drafter's success says where it is good, not how good this one is here
        before = memory.root
        for token in step.tokens:
            line, case = memory.candidates(before)
            if line:
                self._seen[case] += 1.0
                if token in line:
                    self._right[case][line.index(token)] += 1.0
                self._rates[case] = [right / self._seen[case] for right in self._right[case]]
            before = token

    def learn(self, tokens: Sequence[int]) -> None:
        """A text comes without rows: what followed a token stands in where its line is not known."""
        text = np.asarray(tokens, dtype=np.int32)
        before, after = text[:-1], text[1:]
        new = self._table[before, 0] == UNKNOWN
        self._table[before[new], 0] = after[new]

    def forget(self) -> None:
        self._table.fill(UNKNOWN)
        self._seen = [PRIOR] * len(RATES)
        self._right = [[PRIOR * rate for rate in rates] for rates in RATES]
        self._rates = [list(rates) for rates in RATES]

    def close(self) -> None:
        """The table goes with the drafter."""
