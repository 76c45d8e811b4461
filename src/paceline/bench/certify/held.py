"""Targets with recorded logits, for thousands of fast runs, and the choice of contexts where mistakes show.

Rows that the real models computed along a text are recorded. At the chosen context each model returns its
recorded row; after further tokens, the row of another place in the text, which depends on the path alone.
With one vocabulary the target's and the draft's rows come from the same place, so that drafts are often
right.

Both distributions of every recorded row are known in advance, and so is the effect of four kinds of mistakes
on the output there:

    rejected  the residual of a rejected token is ignored, and the target's distribution sampled
    sure      the same, only where the token had probability zero
    prefix    the token after an accepted one is sampled as if that were absent (penalties)
    open      no particular one: the target's row has high entropy"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.logit_drift import teacher_forced_logits
from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Budget, Drafter, Features, RequiredOutputs, Session, Target
from paceline.speculative.sampling import Probabilities, Sampling, probabilities
from paceline.speculative.sessions import TreeSession
from paceline.speculative.tree import ROOT, DraftTree

Rows = NDArray[np.float32]

MISTAKE_KINDS = ("rejected", "sure", "prefix", "open")
CONTEXT_TOKENS = 128  # tokens before a recorded row, which lookup can see


@dataclass
class ContextRow:
    """The index of the recorded row at the context. A session's context is its first tokens."""

    at: int = 0

    def row(self, after: Sequence[int], n: int) -> int:
        """Return the index of the recorded row for the tokens `after` the context."""
        return self.at if not after else (self.at + 1 + hash(tuple(after))) % n


class FixedRowsTarget(DelegatingTarget):
    """A target that returns `rows` [n, n_vocab], with the vocabulary and text of `real`."""

    def __init__(self, real: Any, rows: Rows, place: ContextRow) -> None:
        super().__init__(real)
        self.rows, self.place = rows, place

    def row_after(self, after: Sequence[int]) -> Rows:
        out: Rows = self.rows[self.place.row(after, len(self.rows))]
        return out

    def open(self, beside: Session | None = None) -> FixedRowsSession:
        return FixedRowsSession()

    def close(self) -> None: ...

    def forward(
        self, batch: Sequence[tuple[FixedRowsSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[FixedRowsOutput]:
        out = []
        for session, tree in batch:
            assert not isinstance(tree, int), "a session of fixed rows has no pending tokens"
            session.compute_tree(tree)
            out.append(FixedRowsOutput(self, session.tokens[session.context :], tree, want.top_k))
        return out


class FixedRowsSession(TreeSession):
    """A session whose first `context` tokens are the prompt."""

    context = 0

    def _append(self, tokens: Sequence[int]) -> None:
        self.context = self.context or len(tokens)


class FixedRowsOutput(LogitsOutput):
    def __init__(self, target: FixedRowsTarget, after: list[int], tree: DraftTree, top_k: int) -> None:
        self._target, self._after, self._tree = target, after, tree
        rows = len(tree) + 1
        super().__init__(rows, Features(self.top_k(range(rows), top_k)))

    def logits(self, row: int) -> Rows:
        after = self._after if row == 0 else [*self._after, *self._tree.path_tokens(row - 1)]
        return self._target.row_after(after)


def record_rows(target: Target, text: Sequence[int], n: int) -> Rows:
    """Return the rows [n, n_vocab] that predict the last `n` tokens of `text`, computed one at a time."""
    return teacher_forced_logits(target, text, max(1, len(text) - n), 1).astype(np.float32)


@dataclass(frozen=True)
class Context:
    """The last tokens of text number `text` before a recorded row, and the index of the row."""

    tokens: Sequence[int]
    row: int
    text: int = 0


@dataclass(frozen=True)
class SamplingSetup:
    """Parts of the sampled check. place: the row of `target` and its draft model. rule: of verification."""

    target: FixedRowsTarget
    drafter: Drafter
    place: ContextRow
    budget: Budget
    sampling: Sampling
    rule: str

    def target_distribution(
        self, context: Context, after: Sequence[int] = (), overlooked: int = 0
    ) -> Probabilities:
        """Return the distribution of plain sampling after `context` and `after`.
        overlooked: number of the last tokens that the penalties ignore."""
        self.place.at = context.row
        text = [*context.tokens, *after]
        return probabilities(self.target.row_after(after), self.sampling, text[: len(text) - overlooked])


def select_contexts(loop: SamplingSetup, places: Sequence[Context], n: int) -> list[Context]:
    """Select the `n` best contexts, for each kind of mistake in turn and from different texts."""
    shifts = [(context, detectable_shift(loop, context)) for context in places]
    selected: list[Context] = []
    used: list[list[int]] = [[] for _ in MISTAKE_KINDS]  # numbers of texts
    while len(selected) < min(n, len(shifts)):
        kind = len(selected) % len(MISTAKE_KINDS)
        candidates = [shift for shift in shifts if shift[0] not in selected]
        fewest = min(used[kind].count(context.text) for context, _ in candidates)
        candidates = [candidate for candidate in candidates if used[kind].count(candidate[0].text) == fewest]
        best, _ = max(candidates, key=lambda one: (one[1][kind], one[1][-1]))
        used[kind].append(best.text)
        selected.append(best)
    return selected


def recorded_places(texts: Sequence[Sequence[int]], rows: Sequence[Rows]) -> list[Context]:
    """Return the contexts of all recorded rows. rows: by text, ending with the row of its last token."""
    out: list[Context] = []
    for number, (text, recorded) in enumerate(zip(texts, rows, strict=True)):
        first = len(text) - len(recorded)
        ends = range(first, len(text))
        out += [Context(text[:end][-CONTEXT_TOKENS:], len(out) + end - first, number) for end in ends]
    return out


def detectable_shift(loop: SamplingSetup, context: Context) -> tuple[float, ...]:
    """Return, by MISTAKE_KINDS, the share of draws that such a mistake would move (for "open" the entropy in
    nats), and the entropy again. All shares are 0 where nothing is drafted."""
    p = loop.target_distribution(context)
    entropy = -float(p[p > 0.0] @ np.log(p[p > 0.0]))
    q = first_q(loop, context)
    if q is None:
        return 0.0, 0.0, 0.0, 0.0, entropy
    accepted, residual = np.minimum(p, q), np.maximum(p - q, 0.0)
    rejected = float(residual.sum())
    ignored = total_variation(p, residual / rejected) if rejected > 0.0 else 0.0
    prefix = 0.0
    if loop.sampling.penalised:
        for token in np.argsort(-accepted)[:2].tolist():
            both = (loop.target_distribution(context, [token], overlooked) for overlooked in (0, 1))
            prefix += float(accepted[token]) * total_variation(*both)
    return rejected * ignored, float(q[p <= 0.0].sum()) * ignored, prefix, entropy, entropy


def first_q(loop: SamplingSetup, context: Context) -> Probabilities | None:
    """Return the distribution of the first drafted token, one-hot if deterministic; None without a draft."""
    loop.place.at = context.row
    budget = loop.budget.limited_to(1, loop.budget.nodes, loop.budget.width)
    state = loop.drafter.open(context.tokens, 0)
    try:
        tree = loop.drafter.propose([(state, budget)])[0]
    finally:
        state.close()
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
    return float(np.abs(a - b).sum() / 2.0)
