"""Suffix decoding: what followed earlier endings like this one, in this request or in past outputs (after
SuffixDecoding: Oliaro et al., arXiv:2411.04975).

The places with the same ending vote (vote.py) on a path or, for a wider budget, a tree. A match drafts as
many tokens as it is long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.drafters.parts import DrafterInputs, Scopes, SingleDrafter
from paceline.speculative.interfaces import Budget, Features, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree

if TYPE_CHECKING:
    from paceline.drafters.suffix_history import SuffixHistory

MAX_TOKENS = 1 << 20
MAX_MATCHES = 32  # in the text, and in past outputs; more hardly change the drafts
MAX_MATCHES_UNCOMPILED = 8


class SuffixState:
    """A request's text with its index. The output is learned at the end, or it would be counted twice."""

    def __init__(
        self, drafter: SuffixDrafter, prompt: Sequence[int], text: SuffixHistory, past: SuffixHistory
    ) -> None:
        self._drafter = drafter
        self._output: list[int] = []
        self.text, self.past = text, past
        text.extend(prompt)

    def update(self, step: Step, features: Features) -> None:
        self.text.extend(step.tokens)
        self._output += step.tokens

    def close(self) -> None:
        output, self._output = self._output, []
        self._drafter.remember(output, self.past)
        self.text.clear()


class SuffixDrafter(SingleDrafter):
    """A drafter that owns the history of past outputs.
    max_tokens: past tokens to remember, rounded up to a power of two; 52 to 104 bytes each.
    The first of a process loads compiled code in half a second, after compiling it once per machine."""

    name = "suffix"

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        # Imported here, as numba takes a second to import.
        from paceline.drafters.suffix_history import COMPILED, MAX_MATCH_TOKENS, SuffixHistory
        from paceline.drafters.vote import draft

        self._make, self._draft_into = SuffixHistory, draft
        self._max_tokens = max_tokens
        self._most, self._max_depth = MAX_MATCHES if COMPILED else MAX_MATCHES_UNCOMPILED, MAX_MATCH_TOKENS
        nodes = 2 * self._most * self._max_depth  # of the largest draft
        self._tokens, self._parents = np.empty(nodes, np.int64), np.empty(nodes, np.int64)
        self._scores = np.empty(nodes, np.float64)
        self.history = SuffixHistory(limit=max(1, max_tokens))
        self._past = Scopes(self.history, lambda: SuffixHistory(limit=max(1, max_tokens)))
        # Compile now instead of in the first step.
        state = SuffixState(self, (0, 0), SuffixHistory(), self.history)
        self.follow(state, (0,), Budget(depth=1, nodes=1))

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> SuffixState:
        # A quarter more than the prompt, so that a long prompt is seldom indexed twice.
        return SuffixState(self, prompt, self._make(len(prompt) * 5 // 4), self._past.of(scope))

    def follow(self, state: SuffixState, more: Sequence[int], budget: Budget) -> DraftTree:
        """Return the proposal if the text went on with `more`; the state does not change."""
        with state.text.with_continuation(more):
            return self._draft(state, budget)

    def _draft(self, state: SuffixState, budget: Budget) -> DraftTree:
        depth = min(budget.depth, budget.nodes, self._max_depth)
        if depth < 1 or budget.width < 1:
            return EMPTY
        nodes = min(budget.nodes, 2 * self._most * depth)
        text, past = state.text, state.past
        n = self._draft_into(
            (text.ring, text.links, text.heads, text.state[0]),
            (past.ring, past.links, past.heads, past.state[0]),
            self._most,
            (depth, nodes, budget.width),
            (float(budget.p_min), float(budget.p_split)),
            (self._tokens, self._parents, self._scores),
        )
        if n == 0:
            return EMPTY
        return DraftTree(
            tokens=tuple(self._tokens[:n].tolist()),
            parents=tuple(self._parents[:n].tolist()),
            score=tuple(self._scores[:n].tolist()),
            source=(self.name,) * n,
        )

    def learn(self, tokens: Sequence[int]) -> None:
        self.remember(tokens, self.history)

    def remember(self, tokens: Sequence[int], past: SuffixHistory) -> None:
        """Learn one output, for the requests that draft from `past`."""
        if tokens and self._max_tokens:
            past.end_text()
            past.extend(tokens)

    def forget(self) -> None:
        for past in self._past:
            past.clear()

    def close(self) -> None:
        self.forget()


def make(_: DrafterInputs) -> SuffixDrafter:
    return SuffixDrafter()
