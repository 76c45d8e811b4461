"""A drafter that reads the target's hidden states, as trained heads do: it knows the toy's own weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.backends.toy import ToyTarget
from paceline.speculative.interfaces import Budget, Features, RequiredOutputs
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, DraftTree, chain


class HeadMemory:
    """hidden: what the last layer gave, by its place in the text."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.tokens = list(prompt)
        self.hidden: dict[int, Any] = {}

    def update(self, step: Step, features: Features) -> None:
        rows = [*range(features.lead), *(features.lead + node + 1 for node in (-1, *step.path))]
        for at, row in enumerate(rows[: len(features.hidden)], features.start):
            self.hidden[at] = features.hidden[row, 0]
        self.tokens += step.tokens

    def close(self) -> None: ...


class HeadDrafter:
    """Greedy chains. A toy of one layer shows all that it is made of."""

    name = "head"
    required_outputs = RequiredOutputs(layers=(1,))

    def __init__(self, like: ToyTarget) -> None:
        self._like = like

    def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> HeadMemory:
        return HeadMemory(prompt)

    def propose(self, batch: Sequence[tuple[HeadMemory, Budget]]) -> list[DraftTree]:
        return [self._draft(memory, min(budget.depth, budget.nodes)) for memory, budget in batch]

    def _draft(self, memory: HeadMemory, n: int) -> DraftTree:
        before = len(memory.tokens) - 2
        state = None if before < 0 else memory.hidden.get(before)
        if state is None and before >= 0:
            return EMPTY  # a short prompt, which is read with the first draft
        tokens = [memory.tokens[-1]]
        state = None if state is None else state[None]
        for _ in range(n):
            state = self._like.after(state, tokens[-1])
            tokens.append(int(np.argmax(self._like.logits(state))))
        return chain(tokens[1:], self.name)

    def close(self) -> None: ...
