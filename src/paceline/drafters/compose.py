"""Several drafters in order: the next is asked only where those before it have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.core.ports import Budget, Drafter, Features, Memory, Want
from paceline.core.record import Step
from paceline.core.tree import EMPTY, DraftTree


class ComposedMemory:
    def __init__(self, parts: list[Memory]) -> None:
        self.parts = parts

    def observe(self, step: Step, features: Features) -> None:
        for part in self.parts:
            part.observe(step, features)

    def close(self) -> None:
        for part in self.parts:
            part.close()


class ComposedDrafter:
    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = list(drafters)
        self.name = ",".join(d.name for d in drafters)
        self.wants = Want(top_k=max((d.wants.top_k for d in drafters), default=0))

    def open(self, prompt: Sequence[int], seed: int) -> ComposedMemory:
        memory = ComposedMemory([])
        try:
            for drafter in self._drafters:
                memory.parts.append(drafter.open(prompt, seed))
        except BaseException:
            memory.close()
            raise
        return memory

    def propose(self, batch: Sequence[tuple[ComposedMemory, Budget]]) -> list[DraftTree]:
        trees = [EMPTY] * len(batch)
        for i, drafter in enumerate(self._drafters):
            silent = [at for at, tree in enumerate(trees) if len(tree) == 0]
            if not silent:
                break
            asked = [(batch[at][0].parts[i], batch[at][1]) for at in silent]
            for at, tree in zip(silent, drafter.propose(asked), strict=True):
                trees[at] = tree
        return trees

    def close(self) -> None:
        for drafter in self._drafters:
            drafter.close()
