"""What became of drafted tokens, by how far ahead they were."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.record import Step
from paceline.core.tree import ROOT


@dataclass
class Position:
    """Nodes so many tokens ahead. reached: those whose parent was accepted, in an answer that went on after
    it: the ones that were judged. accepted: of these."""

    drafted: int = 0
    reached: int = 0
    accepted: int = 0


class Positions:
    """The first of `counts` is one token ahead."""

    def __init__(self) -> None:
        self.counts: list[Position] = []

    def add(self, step: Step) -> None:
        tree = step.tree
        if not len(tree):
            return
        for i, depth in enumerate(tree.depths()):
            while depth > len(self.counts):
                self.counts.append(Position())
            self.counts[depth - 1].drafted += i not in tree.probe
        node: int | None = ROOT
        for token, position in zip(step.tokens, self.counts, strict=False):
            assert node is not None
            position.reached += len(tree.children(node))
            node = tree.child(node, token)
            if node is None:
                return
            position.accepted += 1
