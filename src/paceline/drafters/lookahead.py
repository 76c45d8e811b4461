"""Lookahead decoding: n-grams that the target makes itself while it decodes (Fu et al., arXiv:2402.02057).

A window of guesses about the next tokens travels with every forward pass as probes: their rows are computed,
they are never accepted. What a row says goes one place further into the window, so that over `level - 1`
passes each column becomes an n-gram of the target's own making (Jacobi iteration). Those that begin with the
last token are the draft.

    root - x - x - x      the oldest guesses, a chain: column c stands c places after the root
     |     |   |   |
     y     y   y   y      newer ones below their column, each one place further than the one above it
     |     |   |   |
     z     z   z   z      the newest; then their rows' likeliest tokens are, and y stands where x did

This tree is the paper's attention mask: a token sees the text, the oldest guesses before its column, and its
own column. `window` columns have window * (level - 1) - 1 probes, and as many leaves as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Budget, Features, RequiredOutputs, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

# How often the most recent n-gram is right at the root and below, and an older one, as if seen so many times.
PRIOR_COUNT = 8.0
RECENT_HIT_RATES, OLDER_WEIGHT = (0.45, 0.7), 0.05

NAME = "lookahead"
Gram = tuple[int, ...]


class LookaheadState:
    """Owns one request's window, and n-grams: those that came of the window, and those of the text so far.

    The window moves one place a step, however many tokens were accepted: late guesses are still n-grams of
    the target's making. Where another drafter's draft was verified, the window stays as it was."""

    def __init__(self, prompt: Sequence[int], seed: int, window: int, level: int, guesses: int) -> None:
        self._window, self._level, self._guesses = window, level, guesses
        self._filler, self._rng = list(dict.fromkeys(prompt)), Random(seed)
        # Oldest first, a token a column; where the oldest one's first would be stands the root.
        self._rows: list[list[int]] = [[]]
        self._pool: dict[int, dict[Gram, None]] = {}  # by first token; the most recent last
        self._laid, self._ends = EMPTY, list[int]()  # the window as proposed; the last node of every column
        self._seen = [PRIOR_COUNT, PRIOR_COUNT]  # at the root, below it
        self._right = [
            [PRIOR_COUNT * rate, *[PRIOR_COUNT * OLDER_WEIGHT] * (guesses - 1)] for rate in RECENT_HIT_RATES
        ]
        self._text: list[int] = []
        self._extend(prompt)

    def _extend(self, tokens: Sequence[int]) -> None:
        before = len(self._text)
        self._text += tokens
        for end in range(max(before + 1, self._level), len(self._text) + 1):
            self._add_ngram(tuple(self._text[end - self._level : end]))

    def propose(self, budget: Budget) -> DraftTree:
        """The window and the n-grams; where the budget has no room for both, each has half of it."""
        guesses, leaves = self._matching_ngrams(budget)
        columns = self._columns(budget, budget.nodes - len(guesses), budget.width - leaves)
        self._laid = self._lay_window(columns)
        probes = len(self._laid)
        if not guesses:
            return self._laid
        place: dict[Gram, int] = {(): ROOT} | {gram: probes + i for i, gram in enumerate(guesses)}
        siblings: dict[Gram, int] = {}
        score = []
        for gram in guesses:
            older = siblings[gram[:-1]] = siblings.get(gram[:-1], -1) + 1
            below = min(len(gram) - 1, 1)
            score.append(self._right[below][older] / self._seen[below])
        return DraftTree(
            (*self._laid.tokens, *(gram[-1] for gram in guesses)),
            (*self._laid.parents, *(place[gram[:-1]] for gram in guesses)),
            (*self._laid.score, *score),
            (NAME,) * (probes + len(guesses)),
            probe=self._laid.probe,  # they come first, so that no pruning of guesses moves them
        )

    def _matching_ngrams(self, budget: Budget) -> tuple[list[Gram], int]:
        """The n-grams that begin with the last token, as a trie: every beginning of them, parents first; and
        how many leaves it has."""
        nodes = max(1, budget.nodes // 2, budget.nodes - self._window * (self._level - 1) + 1)
        nodes = min(nodes, budget.nodes)
        width = max(1, budget.width // 2, budget.width - self._window)
        out: dict[Gram, None] = {}
        leaves = 0
        for gram in reversed(self._pool.get(self._text[-1], {})):
            beginnings = (gram[:n] for n in range(1, min(len(gram), budget.depth) + 1))
            new = [beginning for beginning in beginnings if beginning not in out][: nodes - len(out)]
            if new and leaves < width:
                out |= dict.fromkeys(new)
                leaves += 1
        return list(out), leaves

    def _columns(self, budget: Budget, nodes: int, leaves: int) -> int:
        """How many columns fit."""
        rows = len(self._rows)
        columns = min(self._window, (nodes + 1) // rows, budget.depth + 2 - rows)
        if rows > 1:
            columns = min(columns, leaves)
        return columns if leaves > 0 and columns * rows > 1 else 0

    def _lay_window(self, columns: int) -> DraftTree:
        """The window as a tree of probes; none of them is expected to be accepted."""
        tokens: list[int] = []
        parents: list[int] = []
        self._ends = []
        oldest = ROOT
        for column in range(columns):
            last = oldest
            for newer, row in enumerate(self._rows):
                if column or newer:
                    parents.append(last)
                    tokens.append(self._guess(row, column))
                    last = len(tokens) - 1
                    oldest = oldest if newer else last
            self._ends.append(last)
        n = len(tokens)
        if n == 0:
            return EMPTY
        return DraftTree(tuple(tokens), tuple(parents), (0.0,) * n, (NAME,) * n, probe=frozenset(range(n)))

    def _guess(self, row: list[int], column: int) -> int:
        while column >= len(row):
            row.append(self._rng.choice(self._filler))
        return row[column]

    def update(self, step: Step, features: Features) -> None:
        laid = self._laid
        verified = len(laid) > 0 and step.tree.starts_with(laid) and laid.probe <= step.tree.probe
        if verified and features.top_k is not None:
            self._advance(features.top_k)
        self._count_hits(step)
        self._extend(step.tokens)

    def _advance(self, top: NDArray[np.int64]) -> None:
        """The likeliest tokens at the columns' ends are the newest row; the oldest one is done."""
        newest = [int(top[end + 1, 0]) for end in self._ends]
        if len(self._rows) == self._level - 1:
            for column, token in enumerate(newest):
                above = () if self._ends[column] == ROOT else self._laid.path_tokens(self._ends[column])
                self._add_ngram((self._text[-1], *above, token)[column:])
            self._rows = [*self._rows[1:], newest]
        else:  # not all are there yet: none makes room by going, so each moves by itself
            self._rows = [*(row[1:] for row in self._rows), newest[1:]]

    def _add_ngram(self, gram: Gram) -> None:
        grams = self._pool.setdefault(gram[0], {})
        grams.pop(gram[1:], None)
        grams[gram[1:]] = None
        if len(grams) > self._guesses:
            del grams[next(iter(grams))]

    def _count_hits(self, step: Step) -> None:
        """How often the most recent n-gram's token was right, the one before it, and so on."""
        tree, node = step.tree, ROOT
        for depth, token in enumerate(step.tokens):
            children = tree.children(node)
            if not children or tree.source[children[0]] != NAME:
                break
            below = min(depth, 1)
            self._seen[below] += 1.0
            drafted = [tree.tokens[child] for child in children]
            if token not in drafted:
                break
            older = drafted.index(token)
            self._right[below][older] += 1.0
            node = children[older]

    def close(self) -> None:
        self._pool.clear()


class LookaheadDrafter:
    """window: columns of guesses that travel along.
    level: the length of the n-grams, their first token included; at least 2.
    guesses: most n-grams that begin alike, and most that one draft tries."""

    name = NAME
    required_outputs = RequiredOutputs(top_k=1)

    def __init__(self, window: int = 7, level: int = 5, guesses: int = 7) -> None:
        self._shape = (window, level, guesses)

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> LookaheadState:
        return LookaheadState(prompt, seed, *self._shape)

    def propose(self, batch: Sequence[tuple[LookaheadState, Budget]]) -> list[DraftTree]:
        return [memory.propose(budget) for memory, budget in batch]

    def close(self) -> None:
        """Nothing is shared between requests."""


def make(parts: DrafterInputs) -> LookaheadDrafter:
    drafting = parts.drafting
    return LookaheadDrafter(drafting.window, drafting.level, drafting.guesses)
