"""Several drafters in order: the next is asked only where those before it have too little to say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.core.ports import Budget, Drafter, Features, Learner, Memory, Want
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
    """least: how many tokens are enough for the later ones not to be asked. Where none has so many, the
    largest draft is taken, of equals the first. A sampled draft is taken whatever its size: how long it
    became depends on what was drawn, and a choice by that would bias the output."""

    def __init__(self, drafters: Sequence[Drafter], least: int = 1) -> None:
        self.drafters = list(drafters)
        self._least = least
        self.name = ",".join(d.name for d in drafters)
        self.wants = Want(top_k=max((d.wants.top_k for d in drafters), default=0))

    def open(self, prompt: Sequence[int], seed: int) -> ComposedMemory:
        memory = ComposedMemory([])
        try:
            for drafter in self.drafters:
                memory.parts.append(drafter.open(prompt, seed))
        except BaseException:
            memory.close()
            raise
        return memory

    def propose(self, batch: Sequence[tuple[ComposedMemory, Budget]]) -> list[DraftTree]:
        trees = [EMPTY] * len(batch)
        asked: list[tuple[str, ...]] = [()] * len(batch)
        for i, drafter in enumerate(self.drafters):
            open_ = [
                at
                for at, (tree, (_, budget)) in enumerate(zip(trees, batch, strict=True))
                if tree.q is None and len(tree.drafted) < min(self._least, budget.nodes, budget.depth)
            ]
            if not open_:
                break
            proposals = drafter.propose([(batch[at][0].parts[i], batch[at][1]) for at in open_])
            for at, tree in zip(open_, proposals, strict=True):
                asked[at] += tree.asked or (drafter.name,)
                # Probes alone are worth their rows where nobody has a guess.
                size, best = (len(tree.drafted), len(tree)), (len(trees[at].drafted), len(trees[at]))
                if tree.q is not None or size > best:
                    trees[at] = tree
        return [replace(tree, asked=names) for tree, names in zip(trees, asked, strict=True)]

    @property
    def learners(self) -> list[Learner]:
        return [d for d in self.drafters if isinstance(d, Learner) and getattr(d, "learners", True)]

    def learn(self, tokens: Sequence[int]) -> None:
        for drafter in self.learners:
            drafter.learn(tokens)

    def forget(self) -> None:
        for drafter in self.learners:
            drafter.forget()

    def close(self) -> None:
        for drafter in self.drafters:
            drafter.close()
