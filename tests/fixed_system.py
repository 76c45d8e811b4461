"""A measured system that gives the same answer to every request."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.system import BenchAnswer, BenchRequest, System


@dataclass
class FixedSystem(System):
    name: str
    tokens: tuple[int, ...] = ()

    def answer(self, request: BenchRequest) -> BenchAnswer:
        n = min(len(self.tokens), request.max_tokens)
        return BenchAnswer("", self.tokens[:n], n, len(request.tokens), 0.1, 0.3, n - 1, 0.2)

    def memory(self) -> int | None:
        return 5
