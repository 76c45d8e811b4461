"""Targets and drafts of a few tokens, given as tables, and the distributions after verification.

Everything is summed over: what the draft draws, what verification decides, what follows. The result is the
exact distribution of the text, so a rule is either right to 1e-12 or wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from enumeration import Tape, outcomes
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.sampling import Probabilities, Sampling, probabilities
from paceline.speculative.tree import ROOT, DraftTree
from paceline.speculative.verify import Verdict, verify

Path = tuple[int, ...]
Verify = Callable[..., Verdict]
Draw = Callable[["World", Tape], DraftTree]
HISTORY = [0, 1, 0]
SAMPLED, INDEPENDENT, FIXED = "sampled", "independent", "fixed"


@dataclass(frozen=True)
class World:
    """n_vocab tokens; every prefix has a p (from logits) and a q of its own, made from `seed`. zeros: the
    share of impossible tokens in both. likeness: 1 makes q what p is before the samplers."""

    n_vocab: int
    seed: int
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=1.0))
    zeros: float = 0.0
    likeness: float = 0.5

    def _weights(self, what: int, path: Path) -> Probabilities:
        random = np.random.default_rng([self.seed, what, len(path), *path])
        weights = random.exponential(size=self.n_vocab) + 1e-3
        weights[random.random(self.n_vocab) < self.zeros] = 0.0
        if not weights.any():
            weights[random.integers(self.n_vocab)] = 1.0
        out: Probabilities = weights / weights.sum()
        return out

    def logits(self, path: Path) -> np.ndarray[Any, Any]:
        with np.errstate(divide="ignore"):
            return np.log(self._weights(0, path))

    def p(self, path: Path) -> Probabilities:
        """Return plain sampling's distribution after the committed text and `path`."""
        return probabilities(self.logits(path), self.sampling, [*HISTORY, *path])

    def q(self, path: Path) -> Probabilities:
        return self.likeness * self._weights(0, path) + (1 - self.likeness) * self._weights(1, path)

    def plain(self, n: int) -> np.ndarray[Any, Any]:
        """The probability of every text of `n` tokens [n_vocab, ...], by the chain rule."""
        total = np.ones(())
        for length in range(n):
            rows = [self.p(path) for path in np.ndindex(*(self.n_vocab,) * length)]
            total = total[..., None] * np.array(rows).reshape((self.n_vocab,) * (length + 1))
        return total


class Answer(LogitsOutput):
    """A Forward over the world's tables."""

    def __init__(self, world: World, tree: DraftTree) -> None:
        self._world, self._tree = world, tree

    def logits(self, row: int) -> np.ndarray[Any, Any]:
        return self._world.logits(tuple(self._tree.path_tokens(row - 1)))

    def argmax(self, row: int) -> int:
        return int(self.logits(row).argmax())


@dataclass(frozen=True)
class Plant:
    """Draws trees of one shape. kinds: per node how its token is chosen: sampled (without replacement among
    its siblings), independent, or fixed (no q)."""

    parents: tuple[int, ...]
    kinds: tuple[str, ...]

    def __call__(self, world: World, tape: Tape) -> DraftTree:
        tokens: list[int] = []
        q: list[Probabilities | None] = []
        for node, parent in enumerate(self.parents):
            path: list[int] = []
            above = parent
            while above != ROOT:
                path.append(tokens[above])
                above = self.parents[above]
            row = world.q(tuple(path[::-1]))
            if self.kinds[node] == SAMPLED:
                for other in range(node):
                    if self.parents[other] == parent and (row > 0).sum() > 1:
                        row = np.where(np.arange(len(row)) == tokens[other], 0.0, row)
                row = row / row.sum()
            fixed = self.kinds[node] == FIXED
            tokens.append(int((row * 7 + node).argmax()) if fixed else tape.draw(row))
            q.append(None if fixed else row)
        n = len(tokens)
        return DraftTree(tuple(tokens), self.parents, (0.5,) * n, ("plant",) * n, q=tuple(q) if n else None)

    @cached_property
    def depth(self) -> int:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)


def plant(*widths: int, kind: str = SAMPLED) -> Plant:
    """`widths[d]` children below every node of depth d."""
    parents: list[int] = []
    level = [ROOT]
    for width in widths:
        below = []
        for parent in level:
            for _ in range(width):
                parents.append(parent)
                below.append(len(parents) - 1)
        level = below
    return Plant(tuple(parents), (kind,) * len(parents))


@dataclass(frozen=True)
class Induced:
    """distance: total variation between what verification emits and plain sampling. accepted: the expected
    number of accepted tokens. mass: of all outcomes together."""

    distance: float
    accepted: float
    mass: float


def induced(world: World, draw: Draw, depth: int, rule: str = "auto", judge: Verify = verify) -> Induced:
    """Sum over every draft and every decision; what follows a step's tokens is plain sampling."""
    n = depth + 1
    plain = world.plain(n)
    emitted = np.zeros_like(plain)
    accepted = mass = 0.0

    def run(tape: Tape) -> Path:
        tree = draw(world, tape)
        verdict = judge(tree, Answer(world, tree), world.sampling, HISTORY, tape, rule)
        return (*(tree.tokens[node] for node in verdict.path), verdict.token)

    for probability, text in outcomes(run):
        mass += probability
        accepted += probability * (len(text) - 1)
        rest = plain[text]
        possible = float(rest.sum())
        # A text of probability 0 under plain sampling counts by its prefix.
        share = rest / possible if possible > 0 else np.full(rest.shape, 1 / rest.size)
        emitted[text] += probability * share
    return Induced(float(np.abs(emitted - plain).sum() / 2), accepted, mass)
