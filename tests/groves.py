"""Random draft trees, and all subtrees of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from hypothesis import strategies as st

from paceline.speculative.interfaces import Budget
from paceline.speculative.tree import ROOT, DraftTree

Choice = frozenset[int]


@st.composite
def trees(draw: st.DrawFn, most: int = 7, chances: Sequence[float] = ()) -> DraftTree:
    """Draw a tree of at most so many nodes, whose siblings differ."""
    n = draw(st.integers(0, most))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(n)]
    some = st.sampled_from(chances) if chances else st.floats(0.0, 1.0)
    score = [draw(some) for _ in range(n)]
    return DraftTree(tuple(range(n)), tuple(parents), tuple(score), ("grove",) * n)


budgets = st.builds(Budget, depth=st.integers(0, 5), nodes=st.integers(0, 7), width=st.integers(1, 4))


def closed(tree: DraftTree) -> Iterator[Choice]:
    """Yield every set of nodes that includes all parents."""
    n = len(tree)
    for size in range(n + 1):
        for nodes in combinations(range(n), size):
            chosen = frozenset(nodes)
            if all(tree.parents[node] in chosen or tree.parents[node] == ROOT for node in nodes):
                yield chosen


def leaves(tree: DraftTree, nodes: Choice) -> int:
    return len(nodes) - len({tree.parents[node] for node in nodes} - {ROOT})


def fits(tree: DraftTree, nodes: Choice, budget: Budget) -> bool:
    depth = max((tree.depths()[node] for node in nodes), default=0)
    return depth <= budget.depth and len(nodes) <= budget.nodes and leaves(tree, nodes) <= budget.width


def kept(tree: DraftTree, of: DraftTree) -> Choice:
    """Return the nodes of the grove `of` that `tree` contains; each token is its own node there."""
    assert all(of.tokens[token] == token for token in tree.tokens)
    return frozenset(tree.tokens)


def reach_probabilities(tree: DraftTree) -> list[float]:
    """Return the product of the scores along each path."""
    out = []
    for node in range(len(tree)):
        path = [tree.score[node]]
        while (node := tree.parents[node]) != ROOT:
            path.append(tree.score[node])
        out.append(prod(path[::-1]))
    return out
