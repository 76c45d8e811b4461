"""The field's classic mistakes, each as verification or drafting that looks right and is biased.

They exist to be caught: by the enumeration in speculative/test_planted_mistakes.py, and by the certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from enumeration import Tape
from paceline.speculative.interfaces import ForwardOutput, Grammar
from paceline.speculative.sampling import Probabilities, Rng, Sampling, TokenDistribution, target_distribution
from paceline.speculative.tree import ROOT, DraftTree
from paceline.speculative.verify import TargetRows, Verdict
from worlds import World

Walk = Callable[[TargetRows, Rng], Verdict]


def judged_by(walk: Walk) -> Callable[..., Verdict]:
    """`walk` in the place of `verify`."""

    def judge(
        tree: DraftTree,
        out: ForwardOutput,
        sampling: Sampling,
        history: Sequence[int],
        rng: Rng,
        rule: str = "auto",
        grammar: Grammar | None = None,
    ) -> Verdict:
        return walk(TargetRows(tree, out, sampling, history, grammar), rng)

    return judge


def everything(rows: TargetRows, rng: Rng) -> Verdict:
    """Whatever is drafted first is accepted."""
    path: list[int] = []
    node = ROOT
    while children := rows.tree.children(node):
        node = children[0]
        path.append(node)
    return Verdict(tuple(path), rows.draw(node, rng))


def q_of(tree: DraftTree, node: int) -> Probabilities:
    q = None if tree.q is None else tree.q[node]
    assert q is not None
    return q


def dense(rows: TargetRows, node: int) -> Probabilities:
    out = np.zeros(rows.n_vocab or len(rows._out.logits(0)))
    row = rows.p(node)
    out[row.ids] = row.p
    return out


Accept = Callable[[Probabilities, Probabilities, int], float]
Rest = Callable[[Probabilities, Probabilities, int], Probabilities]


def node_by_node(accept: Accept, rest: Rest) -> Walk:
    """The recursive rule with its two formulas given."""

    def walk(rows: TargetRows, rng: Rng) -> Verdict:
        tree, path, node = rows.tree, list[int](), ROOT
        while True:
            p = dense(rows, node)
            for child in tree.children(node):
                q, x = q_of(tree, child), tree.tokens[child]
                if rng.accept(min(1.0, accept(p, q, x))):
                    break
                left = np.maximum(rest(p, q, x), 0.0)
                p = left / left.sum() if left.sum() > 0 else p
            else:
                return Verdict(tuple(path), rng.draw(p))
            path.append(child)
            node = child

    return walk


def ratio(p: Probabilities, q: Probabilities, x: int) -> float:
    return float(p[x] / q[x])


def difference(p: Probabilities, q: Probabilities, x: int) -> Probabilities:
    return p - q


def without_x(p: Probabilities, q: Probabilities, x: int) -> Probabilities:
    return np.where(np.arange(len(p)) == x, 0.0, p)


def typical_acceptance(p: Probabilities, q: Probabilities, x: int) -> float:
    """Medusa's: anything likely enough passes."""
    surprise = -np.log(p[p > 0])
    entropy = float(p[p > 0] @ surprise)
    return float(p[x] > min(0.3, 0.09**0.5 * np.exp(-entropy)))


def first_failure(rows: TargetRows, rng: Rng) -> Verdict:
    """The block rule's chances, but walked from the root and stopped at the first failure."""
    tree, path, acc = rows.tree, list[int](), 1.0
    node = ROOT
    while tree.children(node):
        child = tree.children(node)[0]
        p, q, x = dense(rows, node), q_of(tree, child), tree.tokens[child]
        acc = min(1.0, acc * p[x] / q[x])
        below = tree.children(child)
        chance = acc
        if below:
            after, next_q = dense(rows, child), q_of(tree, below[0])
            mass = float(np.maximum(acc * after - next_q, 0).sum())
            chance = mass / (mass + 1 - acc) if mass + 1 - acc > 0 else 1.0
        if not rng.accept(chance):
            left = np.maximum(p - q, 0)
            return Verdict(tuple(path), rng.draw(left / left.sum() if left.sum() > 0 else p))
        path.append(child)
        node = child
    return Verdict(tuple(path), rng.draw(dense(rows, node)))


def forgetful_traversal(rows: TargetRows, rng: Rng) -> Verdict:
    """Whole paths first, but a parent keeps its chance when a child was rejected."""
    tree = rows.tree
    way: list[tuple[int, float]] = [(ROOT, 1.0)]
    rest: dict[int, Probabilities] = {ROOT: dense(rows, ROOT)}
    waiting = {node: list(tree.children(node)) for node in range(-1, len(tree))}
    while True:
        node, acc = way[-1]
        p = rest.setdefault(node, dense(rows, node))
        if waiting[node]:
            child = waiting[node][0]
            q, x = q_of(tree, child), tree.tokens[child]
            way.append((child, min(1.0, acc * p[x] / q[x])))
            continue
        if len(way) == 1 or rng.accept(acc):
            return Verdict(tuple(n for n, _ in way[1:]), rng.draw(p))
        way.pop()
        above, acc = way[-1]
        waiting[above].pop(0)
        left = np.maximum(acc * rest[above] - q_of(tree, node), 0.0)
        if left.sum() > 0:
            rest[above] = left / left.sum()


def last_row_lost(rows: TargetRows, rng: Rng) -> Verdict:
    """The bonus is drawn from the row before the last accepted token's."""
    tree = rows.tree
    verdict = node_by_node(ratio, difference)(rows, rng)
    if not verdict.path or tree.children(verdict.path[-1]):
        return verdict
    return Verdict(verdict.path, rng.draw(dense(rows, tree.parents[verdict.path[-1]])))


class CommittedOnly(TargetRows):
    """Penalties see the committed text, not the row's own drafted prefix."""

    def p(self, node: int) -> TokenDistribution:
        return target_distribution(self._out.logits(node + 1), self.sampling, self._history)


class LastOverlooked(TargetRows):
    """Penalties see a row's drafted prefix without its last token."""

    def _prefix(self, node: int) -> Any:
        history, mask = super()._prefix(node)
        return history if node == ROOT else history[:-1], mask


def seen_by(blind: type[TargetRows]) -> Walk:
    def walk(rows: TargetRows, rng: Rng) -> Verdict:
        seen: Any = object.__new__(blind)
        seen.__dict__.update(rows.__dict__)
        return node_by_node(ratio, difference)(seen, rng)

    return walk


VERIFICATIONS: dict[str, Callable[..., Verdict]] = {
    "the draft's own text is resampled, not its residual": judged_by(node_by_node(ratio, lambda p, q, x: p)),
    "residual of p - q * ratio": judged_by(
        node_by_node(ratio, lambda p, q, x: p - q * min(1.0, float(p[x] / q[x])))
    ),
    "residual p without the rejected token": judged_by(node_by_node(ratio, without_x)),
    "accepted with half of the ratio": judged_by(
        node_by_node(lambda p, q, x: ratio(p, q, x) / 2, difference)
    ),
    "accepted with p alone": judged_by(node_by_node(lambda p, q, x: float(p[x]), difference)),
    "accepted wherever p >= q, else never": judged_by(
        node_by_node(lambda p, q, x: float(p[x] >= q[x]), difference)
    ),
    "Medusa's typical acceptance": judged_by(node_by_node(typical_acceptance, difference)),
    "block chances stopped at the first failure": judged_by(first_failure),
    "traversal that forgets what it rejected": judged_by(forgetful_traversal),
    "bonus from the row before": judged_by(last_row_lost),
    "penalties on the committed text only": judged_by(seen_by(CommittedOnly)),
    "penalties that forget the last drafted token": judged_by(seen_by(LastOverlooked)),
}

Draw = Callable[[World, Tape], DraftTree]


def with_q(draw: Draw, change: Callable[[World, DraftTree, int], Probabilities | None]) -> Draw:
    """The drafts of `draw`, each node recorded with another q than it was drawn from."""

    def wrong(world: World, tape: Tape) -> DraftTree:
        tree = draw(world, tape)
        return replace(tree, q=tuple(change(world, tree, node) for node in range(len(tree))))

    return wrong


def softened(world: World, tree: DraftTree, node: int) -> Probabilities:
    """The draft's q before its own temperature."""
    q: Probabilities = np.sqrt(q_of(tree, node))
    q /= q.sum()
    return q


def beheaded(world: World, tree: DraftTree, node: int) -> Probabilities:
    """q mixed with the uniform distribution: as if a top-k of the draft's had not been applied."""
    return 0.7 * q_of(tree, node) + 0.3 / world.n_vocab


def argmax_chain(world: World, tape: Tape) -> DraftTree:
    """Greedy drafts, recorded with the softmax they are the argmax of."""
    first = world.q(())
    x = int(first.argmax())
    second = world.q((x,))
    return DraftTree((x, int(second.argmax())), (ROOT, 0), (0.5, 0.5), ("wrong",) * 2, q=(first, second))


def never_renormalised(world: World, tree: DraftTree, node: int) -> Probabilities:
    """Siblings drawn without replacement, recorded as if they had been drawn independently."""
    return world.q(tuple(tree.path_tokens(tree.parents[node])))


def dropped_when_unlikely(draw: Draw, p_min: float) -> Draw:
    """A sampled token is dropped, with all below it, because its own q is low."""

    def wrong(world: World, tape: Tape) -> DraftTree:
        tree = draw(world, tape)
        kept: list[bool] = []
        for node, parent in enumerate(tree.parents):
            likely = q_of(tree, node)[tree.tokens[node]] >= p_min
            kept.append(bool(likely) and (parent == ROOT or kept[parent]))
        return tree.filter(kept)

    return wrong


def certainly_not_zeroed(rows: TargetRows, rng: Rng) -> Verdict:
    """A deterministic draft is rejected with 1 - p(x), and then p is sampled as if nothing had been said."""
    tree, path, node = rows.tree, list[int](), ROOT
    while True:
        p = dense(rows, node)
        for child in tree.children(node):
            if rng.accept(float(p[tree.tokens[child]])):
                break
        else:
            return Verdict(tuple(path), rng.draw(p))
        path.append(child)
        node = child


def highest_of_equals(rows: TargetRows, rng: Rng) -> Verdict:
    """Greedy that breaks ties towards the highest id, as plain decoding does not."""
    tree, path, node = rows.tree, list[int](), ROOT
    while True:
        logits = rows._out.logits(node + 1)
        token = int(np.flatnonzero(logits == logits.max())[-1])
        child = tree.child(node, token)
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child


def cut_at_the_end_of_the_step(request: Any, tree: DraftTree, verdict: Verdict, n_ctx: int) -> Any:
    """`collect_step` that looks for the end of the text in a step's last token only."""
    tokens = (*(tree.tokens[node] for node in verdict.path), verdict.token)
    sources = (*(tree.source[node] for node in verdict.path), "target")
    request.n_tokens += len(tokens) - 1
    return tokens, sources, request.check_stop(tokens[-1], n_ctx)
