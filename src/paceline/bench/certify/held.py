"""Models whose answers are fixed, so that drafting and verification can be run thousands of times, and the
contexts where mistakes would show.

Rows that the real models computed along a text are kept. At the chosen context each model answers its row
there; below it, a row of another place in the text, which depends on the path alone. With one vocabulary the
target's and the draft's rows come from the same place, so that drafts are often right.

Of every recorded row both distributions are known before a token is drawn, and so is how far four kinds of
mistakes would move the output there:

    rejected  what a rejected token left over is forgotten, and the target's own distribution drawn from
    sure      the same, but only where the token had no chance at all
    prefix    the token after an accepted one is drawn as if that had not been there (penalties)
    open      none in particular: the target's row leaves most to chance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.logit_drift import teacher_forced_logits
from paceline.speculative.errors import ContractError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Budget, Caps, Drafter, Features, RequiredOutputs, Session, Target
from paceline.speculative.sampling import Probabilities, Sampling, filter_top_k, probabilities
from paceline.speculative.tree import ROOT, DraftTree
from paceline.speculative.vocabulary import Vocab

Rows = NDArray[np.float32]

MISTAKE_KINDS = ("rejected", "sure", "prefix", "open")
CONTEXT_TOKENS = 128  # tokens before a held row: all that lookup then sees


@dataclass
class ContextRow:
    """Which of the recorded rows is that of the context. A session's context is what it was first given."""

    at: int = 0

    def row(self, after: Sequence[int], n: int) -> int:
        """The recorded row that answers for the tokens `after` the context."""
        return self.at if not after else (self.at + 1 + hash(tuple(after))) % n


class FixedRowsTarget:
    """Answers `rows` [n, n_vocab] in the place of `real`, whose vocabulary and text it has."""

    def __init__(self, real: Any, rows: Rows, place: ContextRow) -> None:
        self.rows, self.place = rows, place
        self.vocab: Vocab = real.vocab
        self.origin: str = real.origin
        self.caps: Caps = real.caps
        self.text = getattr(real, "text", None)

    def open(self, beside: Session | None = None) -> FixedRowsSession:
        return FixedRowsSession()

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def forward(
        self, batch: Sequence[tuple[FixedRowsSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[FixedRowsOutput]:
        out = []
        for session, tree in batch:
            if isinstance(tree, int):
                raise ContractError("rows that are held have no prompt that is still to be read")
            session.tree = tree
            out.append(FixedRowsOutput(self, session.tokens[session.context :], tree, want))
        return out


class FixedRowsSession:
    pending_tokens = 0

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.context = 0
        self.tree: DraftTree | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.context = self.context or len(tokens)
        self.tree = None

    def commit(self, path: Sequence[int], root: int) -> None:
        if self.tree is None:
            raise ContractError("keep before forward: there is nothing to commit")
        self.tree.check_path(path)
        self.tokens += [*(self.tree.tokens[node] for node in path), root]

    def close(self) -> None:
        """Nothing is held."""


class FixedRowsOutput(LogitsOutput):
    def __init__(
        self, target: FixedRowsTarget, after: list[int], tree: DraftTree, want: RequiredOutputs
    ) -> None:
        self._target, self._after, self._tree = target, after, tree
        super().__init__(len(tree) + 1)
        if want.top_k:
            top = np.stack([filter_top_k(self.logits(row), want.top_k) for row in range(len(tree) + 1)])
            self.features = Features(top_k=top)

    def logits(self, row: int) -> Rows:
        node = row - 1
        after = self._after if node == ROOT else [*self._after, *self._tree.path_tokens(node)]
        rows = self._target.rows
        out: Rows = rows[self._target.place.row(after, len(rows))]
        return out


def record_rows(target: Target, text: Sequence[int], n: int) -> Rows:
    """The rows [n, n_vocab] that predict the last `n` tokens of `text`, one at a time."""
    return teacher_forced_logits(target, text, max(1, len(text) - n), 1).astype(np.float32)


@dataclass(frozen=True)
class Context:
    """tokens: what was said before, of the text of that number. row: the recorded row that follows."""

    tokens: Sequence[int]
    row: int
    text: int = 0


@dataclass(frozen=True)
class SamplingSetup:
    """place: that `target`, and the draft model if there is one, answer from. rule: of verification."""

    target: FixedRowsTarget
    drafter: Drafter
    place: ContextRow
    budget: Budget
    sampling: Sampling
    rule: str

    def target_distribution(
        self, context: Context, after: Sequence[int] = (), overlooked: int = 0
    ) -> Probabilities:
        """What plain sampling draws from behind `context` and the tokens `after` it, of which the penalties
        overlook so many."""
        self.place.at = context.row
        row = self.target.rows[self.place.row(after, len(self.target.rows))]
        history = [*context.tokens, *after]
        return probabilities(row, self.sampling, history[: len(history) - overlooked])


def select_contexts(loop: SamplingSetup, places: Sequence[Context], n: int) -> list[Context]:
    """The `n` best, for each kind of mistake in turn; for one kind each time in another text, as long as
    there are."""
    known = [(context, detectable_shift(loop, context)) for context in places]
    taken: list[Context] = []
    used: list[list[int]] = [[] for _ in MISTAKE_KINDS]  # the texts, by kind
    while len(taken) < min(n, len(known)):
        kind = len(taken) % len(MISTAKE_KINDS)
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
        out += [Context(text[: first + i][-CONTEXT_TOKENS:], len(out) + i, number) for i in range(len(its))]
    return out


def detectable_shift(loop: SamplingSetup, context: Context) -> tuple[float, ...]:
    """By KINDS the share of all draws that such a mistake would move, of the last the entropy in nats; all
    are 0 where nothing is drafted, and the entropy comes once more."""
    p = loop.target_distribution(context)
    entropy = -float(p[p > 0.0] @ np.log(p[p > 0.0]))
    q = first_q(loop, context)
    if q is None:
        return 0.0, 0.0, 0.0, 0.0, entropy
    selected, left = np.minimum(p, q), np.maximum(p - q, 0.0)
    rejected = float(left.sum())
    forgotten = total_variation(p, left / rejected) if rejected > 0.0 else 0.0
    prefix = 0.0
    if loop.sampling.penalised:
        for token in np.argsort(-selected)[:2].tolist():
            reported = (loop.target_distribution(context, [token], overlooked) for overlooked in (0, 1))
            prefix += float(selected[token]) * total_variation(*reported)
    return rejected * forgotten, float(q[p <= 0.0].sum()) * forgotten, prefix, entropy, entropy


def first_q(loop: SamplingSetup, context: Context) -> Probabilities | None:
    """What the first drafted token is drawn from: all on itself where it is no matter of chance, None where
    nothing is drafted."""
    loop.place.at = context.row
    budget = loop.budget.limited_to(1, loop.budget.nodes, loop.budget.width)
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


def total_variation(a: Probabilities, b: Probabilities) -> float:
    """Total variation."""
    return float(np.abs(a - b).sum() / 2.0)
