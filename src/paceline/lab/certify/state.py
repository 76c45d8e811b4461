"""Does the cache hold what it should? After random acceptances and rejections, with decoys beside them, the
next row must be the one that the same text gives from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.core.ports import Budget, Session, Target, Want
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.engines.noise import afresh, apart
from paceline.lab.compare import PLAUSIBLE

# Every cell of the sequence was written by a pass of another shape, not only the row that is looked at.
DRIFT = 2.0
# Of a row's spread, what is never a defect: exact rows show no noise, but a walk's prompt has a shape too.
ROUNDING = 1e-4


@dataclass(frozen=True)
class State:
    """Of the walk that came nearest to its limit. worst: the most that two logits of its row moved apart
    from the same row computed afresh. noise: what the shape of a pass alone can do. spread: the standard
    deviation of that row's logits."""

    sequences: int
    tokens: int
    worst: float
    noise: float
    spread: float
    equal_rows: bool = False  # the target's (Caps): then nothing may move at all

    @property
    def limit(self) -> float:
        if self.equal_rows:
            return 0.0
        return min(max(DRIFT * self.noise, ROUNDING * self.spread), PLAUSIBLE * self.spread)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.worst / self.limit if self.limit > 0 else np.inf if self.worst > 0 else 0.0

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "limit": self.limit} | asdict(self)


def check_state(
    target: Target,
    texts: Sequence[Sequence[int]],
    budget: Budget,
    noise: float,
    *,
    sequences: int,
    seed: int,
    tick: Callable[[], None],
) -> State:
    """`sequences` walks along the texts; each ends in a comparison."""
    random = np.random.default_rng([seed, 3])
    found: State | None = None
    tokens = 0
    for i in range(sequences):
        walked, row = walk(target, texts[i % len(texts)], budget, random)
        again = afresh(target, walked)
        tokens += len(walked)
        equal = target.caps.equal_rows
        one = State(sequences, tokens, apart(row, again), noise, float(again.std()), equal)
        # The one nearest to its own limit, or beyond it; not max(), which passes over a NaN.
        if found is None or not (one.share <= found.share or np.isnan(found.share)):
            found = one
        tick()
    assert found is not None  # there is at least one walk
    return replace(found, tokens=tokens)


def walk(
    target: Target, text: Sequence[int], budget: Budget, random: np.random.Generator
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Decode along `text` with drafts of which a random part is right; (tokens committed, the next row)."""
    session = target.open()
    try:
        at = int(random.integers(1, max(2, len(text) // 2)))
        session.extend(text[:at])
        while at < len(text):
            at += stride(target, session, text[at:], budget, random)
        out = target.forward([(session, EMPTY)], Want())[0]
        return list(session.tokens), np.array(out.logits(0), np.float64)[None]
    finally:
        session.close()


def stride(
    target: Target, session: Session, ahead: Sequence[int], budget: Budget, random: np.random.Generator
) -> int:
    """One draft, one pass, one commit; returns how many tokens of `ahead` were committed."""
    room = target.caps.n_ctx - len(session.tokens)
    depth = min(budget.depth, room)
    width = int(random.integers(1, min(budget.width, target.caps.branch, max(1, room)) + 1))
    right = int(random.integers(0, min(depth, len(ahead) - 1) + 1))
    nodes = min(budget.nodes, room, target.caps.rows - 1)  # as Request.cap has it
    tree, path = among_decoys(ahead[:right], depth, width, nodes, target.vocab.size, random)
    target.forward([(session, tree)], Want())
    kept = int(random.integers(0, len(path) + 1))
    session.keep(path[:kept], ahead[kept])
    return kept + 1


def among_decoys(
    right: Sequence[int], depth: int, width: int, nodes: int, n_vocab: int, random: np.random.Generator
) -> tuple[DraftTree, list[int]]:
    """`width` chains of `depth` random tokens, one of which begins with `right`; and the nodes of that."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    mine = int(random.integers(width))
    ends = [ROOT] * width
    for level in range(depth):
        for branch in range(width):
            if len(tokens) >= nodes:
                break
            is_right = branch == mine and level < len(right)
            tokens.append(int(right[level]) if is_right else int(random.integers(n_vocab)))
            parents.append(ends[branch])
            ends[branch] = len(tokens) - 1
            if is_right:
                path.append(ends[branch])
    n = len(tokens)
    return DraftTree(tuple(tokens), tuple(parents), (1.0,) * n, ("decoy",) * n), path
