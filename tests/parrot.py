"""Drafters for tests: a wrapper, a repeater of the last answer to the same prompt, a cascade's copier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.drafters.lookup import LookupDrafter, LookupState
from paceline.speculative.interfaces import Budget, Drafter, Features, RequiredOutputs
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree, chain


class WrappedDrafter:
    """A drafter around another one, for subclasses that change budgets or drafts."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.name, self.required_outputs = drafter.name, drafter.required_outputs

    def open(self, prompt: Sequence[int], seed: int, *_: Any, **__: Any) -> Any:
        return self._drafter.open(prompt, seed)

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        return self._drafter.propose(batch)

    def close(self) -> None:
        self._drafter.close()


class Parrot:
    """The drafter. forgot, closed: numbers of calls."""

    def __init__(self, top_k: int = 0, name: str = "parrot") -> None:
        self.name, self.required_outputs = name, RequiredOutputs(top_k=top_k)
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self.forgot = self.closed = 0

    def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> ParrotState:
        return ParrotState(self, tuple(prompt))

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [
            chain(self.answers.get(state.prompt, [])[len(state.answer) :][: budget.depth], self.name)
            for state, budget in batch
        ]

    def learn(self, tokens: Sequence[int]) -> None:
        """Do nothing: a text without a prompt teaches nothing."""

    def forget(self) -> None:
        self.answers.clear()
        self.forgot += 1

    def close(self) -> None:
        self.closed += 1


class ParrotState:
    def __init__(self, parrot: Parrot, prompt: tuple[int, ...]) -> None:
        self.parrot, self.prompt = parrot, prompt
        self.answer: list[int] = []

    def update(self, step: Step, features: Features) -> None:
        self.answer += step.tokens

    def close(self) -> None:
        if self.answer:
            self.parrot.answers[self.prompt] = self.answer


class LookupCopier(LookupDrafter):
    """Lookup as the copier of a cascade."""

    def follow(self, state: LookupState, more: Sequence[int], budget: Budget) -> DraftTree:
        longer = self.open([*state.tokens, *more], 0)
        return self.propose([(longer, budget)])[0]
