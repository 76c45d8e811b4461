"""A drafter with a clock: what proposing costs it, and what keeping up with the text does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from paceline.core.ports import Budget, Drafter, Features, Memory, Session, Want
from paceline.core.record import Step
from paceline.core.tree import DraftTree


@dataclass
class Spent:
    """Seconds. begin: with prompts; propose: drafting; observe: on what was decoded; end: as requests end."""

    begin: float = 0.0
    propose: float = 0.0
    observe: float = 0.0
    end: float = 0.0


class ClockedMemory:
    def __init__(self, memory: Memory, spent: Spent) -> None:
        self.memory = memory
        self._spent = spent

    def observe(self, step: Step, features: Features) -> None:
        began = perf_counter()
        self.memory.observe(step, features)
        self._spent.observe += perf_counter() - began

    def close(self) -> None:
        began = perf_counter()
        self.memory.close()
        self._spent.end += perf_counter() - began


class ClockedDrafter:
    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.spent = Spent()

    @property
    def name(self) -> str:
        return self.drafter.name

    @property
    def wants(self) -> Want:
        return self.drafter.wants

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> ClockedMemory:
        began = perf_counter()
        memory = self.drafter.open(prompt, seed, session, scope)
        self.spent.begin += perf_counter() - began
        return ClockedMemory(memory, self.spent)

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        inner = [(clocked.memory, budget) for clocked, budget in batch]
        began = perf_counter()
        trees = self.drafter.propose(inner)
        self.spent.propose += perf_counter() - began
        return trees

    def close(self) -> None:
        self.drafter.close()
