"""Prompt lookup: a copy of the tokens after the last occurrence of the ending (A. Saxena, 2023).

The longest n-gram comes first, of ties the most recent. A match near the end continues into its own draft, as
an LZ77 copy does, so that repetitive text gets drafts of full length.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.parts import DrafterInputs, SingleDrafter
from paceline.speculative.interfaces import Budget, Features, Session
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree, chain


class LookupState:
    """The request's tokens, with an index from n-grams to their last continuation."""

    def __init__(self, prompt: Sequence[int], ngram_min: int, ngram_max: int) -> None:
        self.tokens: list[int] = []
        self.lengths = range(ngram_max, ngram_min - 1, -1)
        self.followed: dict[tuple[int, ...], int] = {}
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            # N-grams enter the index with the token that follows, so the end never matches itself.
            for n in self.lengths:
                if len(self.tokens) >= n:
                    self.followed[tuple(self.tokens[-n:])] = len(self.tokens)
            self.tokens.append(token)

    def update(self, step: Step, features: Features) -> None:
        self.extend(step.tokens)

    def close(self) -> None:
        self.followed.clear()
        self.tokens.clear()


class LookupDrafter(SingleDrafter):
    """A drafter that copies from the request's own text."""

    name = "lookup"

    def __init__(self, ngram_min: int = 1, ngram_max: int = 3) -> None:
        self._bounds = (ngram_min, ngram_max)

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> LookupState:
        return LookupState(prompt, *self._bounds)

    def _draft(self, state: LookupState, budget: Budget) -> DraftTree:
        length = min(budget.depth, budget.nodes)
        if length < 1:
            return EMPTY
        for n in state.lengths:
            start = state.followed.get(tuple(state.tokens[-n:]))
            if start is not None:
                break
        else:
            return EMPTY
        copied = state.tokens[start : start + length]
        while len(copied) < length:
            copied += copied[: length - len(copied)]
        # A longer match is more likely to continue alike.
        return chain(copied, self.name, score=[n / (n + 1)] * length)


def make(parts: DrafterInputs) -> LookupDrafter:
    return LookupDrafter(parts.drafting.ngram_min, parts.drafting.ngram_max)
