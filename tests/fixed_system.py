"""A measured system that gives the same answer to every request."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.system import BenchAnswer, BenchRequest


@dataclass
class FixedSystem:
    name: str
    tokens: tuple[int, ...] = ()

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        n = min(len(self.tokens), ask.max_tokens)
        return BenchAnswer("", self.tokens[:n], n, len(ask.tokens), 0.1, 0.3, n - 1, 0.2)

    def memory(self) -> int | None:
        return 5

    def close(self) -> None:
        """Do nothing."""
