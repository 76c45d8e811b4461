"""A draft: a tree of guessed tokens in flat arrays; a chain is a tree without branches.

The root is the last emitted token and is not in the arrays. Node `i` is a child of `parents[i]`, or of the
root where that is ROOT; parents always come before their children.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.speculative.sampling import Probabilities

ROOT = -1
Votes = tuple[tuple[str, float], ...]  # (drafter, score) of every drafter that proposed a node
CHAIN_PARENTS = [tuple(range(ROOT, n - 1)) for n in range(65)]  # parents of a chain by its length


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A draft for one request. Every field but `q`, `probe` and `called` has one entry per node.
    score: the drafter's confidence in the node, given that the parent is accepted (0 to 1).
    q: the distribution [n_vocab] the token was drawn from, given the siblings drawn before; None for a
        deterministic choice, and as a whole if all choices were deterministic.
    reach_probability: that the whole path is accepted; by default the product of its scores.
    votes: the drafters that proposed each node, with scores; () if each node has only its source."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    score: tuple[float, ...] = ()
    source: tuple[str, ...] = ()  # name of the drafter that proposed the node
    q: tuple[Probabilities | None, ...] | None = None
    probe: frozenset[int] = frozenset()  # nodes whose rows are computed but which are never accepted
    reach_probability: tuple[float, ...] = ()
    called: tuple[str, ...] = ()  # the drafters called for this draft, in order
    votes: tuple[Votes, ...] = field(default=(), repr=False, compare=False)
    _depths: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _children: list[list[int]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        assert len(self.parents) == len(self.score) == len(self.source) == n, "draft tree: lengths differ"
        assert self.q is None or len(self.q) == n, "draft tree: q needs one entry per node"
        if not self.is_chain:
            for i, parent in enumerate(self.parents):
                assert ROOT <= parent < i, f"draft tree: node {i} has parent {parent}; parents come first"
        if len(self.reach_probability) != n:
            object.__setattr__(self, "reach_probability", self._paths_product())

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """True if every node is the child of the node before it."""
        n = len(self.tokens)
        return self.parents == (CHAIN_PARENTS[n] if n < len(CHAIN_PARENTS) else tuple(range(ROOT, n - 1)))

    @property
    def drafter_names(self) -> tuple[str, ...]:
        """The drafters of all nodes except probes."""
        if not self.probe:
            return self.source
        return tuple(name for node, name in enumerate(self.source) if node not in self.probe)

    def _paths_product(self) -> tuple[float, ...]:
        out: list[float] = []
        for parent, score in zip(self.parents, self.score, strict=True):
            out.append(score if parent == ROOT else out[parent] * score)
        return tuple(out)

    def children(self, node: int) -> list[int]:
        """Return the children of `node` (or ROOT) in draft order, without probes."""
        if not self._children:
            table: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
            for i, parent in enumerate(self.parents):
                if i not in self.probe:
                    table[parent + 1].append(i)
            self._children.extend(table)
        return self._children[node + 1]

    def child(self, node: int, token: int) -> int | None:
        """Return the first child of `node` with this token."""
        for i in self.children(node):
            if self.tokens[i] == token:
                return i
        return None

    def check_path(self, path: Sequence[int]) -> None:
        """Fail unless `path` leads down from the root and over no probe."""
        parent = ROOT
        for node in path:
            assert self.parents[node] == parent, f"path: node {node} does not follow {parent}"
            assert node not in self.probe, f"path: node {node} is a probe, which is never accepted"
            parent = node

    def path_tokens(self, node: int) -> list[int]:
        """Return the tokens from the root's child down to `node`; none for the root."""
        out: list[int] = []
        while node != ROOT:
            out.append(self.tokens[node])
            node = self.parents[node]
        return out[::-1]

    def depths(self) -> list[int]:
        """Return the distance of every node from the root (1 for its children)."""
        out = self._depths
        if not out:
            for parent in self.parents:
                out.append(1 if parent == ROOT else out[parent] + 1)
        return out

    def path_of(self, tokens: Sequence[int]) -> list[int]:
        """Return the path from the root that follows `tokens`, as far as the tree has them."""
        path, node = list[int](), ROOT
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def filter(self, selected: Sequence[bool]) -> DraftTree:
        """Return the nodes marked True, in order; the parents of marked nodes must be marked too."""
        return self.subset([node for node, mark in enumerate(selected) if mark], self.reach_probability)

    def proposed_by(self, called: tuple[str, ...]) -> DraftTree:
        """Return the same draft with `called` set."""
        if called == self.called:
            return self
        return replace(self, called=called) if self.tokens else DraftTree(called=called)

    def subset(self, nodes: Sequence[int], reach_probability: Sequence[float]) -> DraftTree:
        """Return only these nodes (ascending, with all parents). reach_probability: of all nodes."""
        n = len(nodes)
        if n == len(self.tokens):
            return self
        if n == 0:
            return DraftTree(called=self.called)
        if nodes[-1] == n - 1 and self.q is None and not self.probe:
            return DraftTree(
                self.tokens[:n],
                self.parents[:n],
                self.score[:n],
                self.source[:n],
                reach_probability=tuple(reach_probability[:n]),
                called=self.called,
                votes=self.votes[:n],
            )
        place = {node: i for i, node in enumerate(nodes)}
        place[ROOT] = ROOT
        return DraftTree(
            tokens=tuple([self.tokens[i] for i in nodes]),
            parents=tuple([place[self.parents[i]] for i in nodes]),
            score=tuple([self.score[i] for i in nodes]),
            source=tuple([self.source[i] for i in nodes]),
            q=None if self.q is None else tuple([self.q[i] for i in nodes]),
            probe=frozenset([place[i] for i in self.probe if i in place]) if self.probe else self.probe,
            reach_probability=tuple([reach_probability[i] for i in nodes]),
            called=self.called,
            votes=tuple([self.votes[i] for i in nodes]) if self.votes else (),
        )

    def starts_with(self, other: DraftTree) -> bool:
        """Return whether the leading nodes are exactly those of `other`."""
        n = len(other.tokens)
        return self.tokens[:n] == other.tokens and self.parents[:n] == other.parents


EMPTY = DraftTree()


def chain(
    tokens: Sequence[int],
    source: str,
    score: Sequence[float] | None = None,
    q: Sequence[Probabilities | None] | None = None,
) -> DraftTree:
    """Return a draft without branches."""
    n = len(tokens)
    if n == 0:
        return EMPTY
    return DraftTree(
        tokens=tuple(tokens),
        parents=tuple(range(-1, n - 1)),
        score=tuple(score) if score is not None else (1.0,) * n,
        source=(source,) * n,
        q=None if q is None or all(x is None for x in q) else tuple(q),
    )
