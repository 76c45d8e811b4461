"""Which contexts the sampled check decodes after: those where mistakes would show.

Where the two models agree, nothing is rejected; where nothing is drafted, nothing is verified. Of every
recorded row both distributions are known before a single token is drawn, and so is how far four kinds of
mistakes would move the output there:

    rejected  what a rejected token left over is forgotten, and the target's own distribution drawn from
    sure      the same, but only where the token had no chance at all
    prefix    the token after an accepted one is drawn as if that had not been there (penalties)
    open      none in particular: the target's row leaves most to chance
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.core.arrays import Probabilities
from paceline.core.tree import ROOT
from paceline.lab.certify.held import Rows
from paceline.lab.certify.loop import Context, Loop

KINDS = ("rejected", "sure", "prefix", "open")
LENGTH = 128  # tokens before a held row: all that lookup then sees


def chosen(loop: Loop, places: Sequence[Context], n: int) -> list[Context]:
    """The `n` best, for each kind of mistake in turn; for one kind each time in another text, as long as
    there are."""
    known = [(context, moved(loop, context)) for context in places]
    taken: list[Context] = []
    used: list[list[int]] = [[] for _ in KINDS]  # the texts, by kind
    while len(taken) < min(n, len(known)):
        kind = len(taken) % len(KINDS)
        free = [one for one in known if one[0] not in taken]
        fewest = min(used[kind].count(context.text) for context, _ in free)
        free = [one for one in free if used[kind].count(one[0].text) == fewest]
        best, _ = max(free, key=lambda one: (one[1][kind], one[1][-1]))
        used[kind].append(best.text)
        taken.append(best)
    return taken


def recorded_places(texts: Sequence[Sequence[int]], rows: Sequence[Rows]) -> list[Context]:
    """Every place that a row was recorded of. rows: of each text, the last one that of its last token."""
    out: list[Context] = []
    for number, (text, its) in enumerate(zip(texts, rows, strict=True)):
        first = len(text) - len(its)
        out += [Context(text[: first + i][-LENGTH:], len(out) + i, number) for i in range(len(its))]
    return out


def moved(loop: Loop, context: Context) -> tuple[float, ...]:
    """By KINDS the share of all draws that such a mistake would move, of the last the entropy in nats; all
    are 0 where nothing is drafted, and the entropy comes once more."""
    p = loop.p(context)
    entropy = -float(p[p > 0.0] @ np.log(p[p > 0.0]))
    q = first_q(loop, context)
    if q is None:
        return 0.0, 0.0, 0.0, 0.0, entropy
    kept, left = np.minimum(p, q), np.maximum(p - q, 0.0)
    rejected = float(left.sum())
    forgotten = distance(p, left / rejected) if rejected > 0.0 else 0.0
    prefix = 0.0
    if loop.sampling.penalised:
        for token in np.argsort(-kept)[:2].tolist():
            told = (loop.p(context, [token], overlooked) for overlooked in (0, 1))
            prefix += float(kept[token]) * distance(*told)
    return rejected * forgotten, float(q[p <= 0.0].sum()) * forgotten, prefix, entropy, entropy


def first_q(loop: Loop, context: Context) -> Probabilities | None:
    """What the first drafted token is drawn from: all on itself where it is no matter of chance, None where
    nothing is drafted."""
    loop.place.at = context.row
    budget = loop.budget.capped(1, loop.budget.nodes, loop.budget.width)
    memory = loop.drafter.open(context.tokens, 0)
    try:
        tree = loop.drafter.propose([(memory, budget)])[0]
    finally:
        memory.close()
    children = tree.children(ROOT)
    if not children:
        return None
    out = np.zeros(loop.target.vocab.size)
    q = None if tree.q is None else tree.q[children[0]]
    if q is None:
        out[tree.tokens[children[0]]] = 1.0
    else:
        out[: len(q)] = q
    return out


def distance(a: Probabilities, b: Probabilities) -> float:
    """Total variation."""
    return float(np.abs(a - b).sum() / 2.0)
