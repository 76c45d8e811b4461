"""Targets with recorded logits, for thousands of fast runs.

Rows that the real models computed along a text are recorded. At the chosen context each model returns its
recorded row; after further tokens that row or the next one, by the tokens. With one vocabulary the
target's and the draft's rows come from the same place, so that drafts are often right, and a token that was
just said is likely again, so that penalties change much."""

from __future__ import annotations

from collections import Counter
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
CONTEXT_TOKENS = 128  # tokens before a recorded row, which lookup can see
N_NEXT = 2  # rows from the context's on, of which one follows each path


@dataclass
class ContextRow:
    """The index of the recorded row at the context. A session's context is its first tokens."""

    at: int = 0


class FixedRowsTarget(DelegatingTarget):
    """A target that returns `rows` [n, n_vocab], with the vocabulary and text of `real`."""

    def __init__(self, real: Any, rows: Rows, place: ContextRow) -> None:
        super().__init__(real)
        self.rows, self.place = rows, place

    def row_after(self, after: Sequence[int]) -> Rows:
        """Return the row of the tokens `after` the context."""
        step = hash(tuple(after)) % N_NEXT if after else 0
        out: Rows = self.rows[(self.place.at + step) % len(self.rows)]
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


def recorded_places(texts: Sequence[Sequence[int]], rows: Sequence[Rows]) -> list[Context]:
    """Return the contexts of all recorded rows. rows: by text, ending with the row of its last token."""
    out: list[Context] = []
    for number, (text, recorded) in enumerate(zip(texts, rows, strict=True)):
        first = len(text) - len(recorded)
        ends = range(first, len(text))
        out += [Context(text[:end][-CONTEXT_TOKENS:], len(out) + end - first, number) for end in ends]
    return out


@dataclass(frozen=True)
class SamplingSetup:
    """Parts of the sampled check. place: the row of `target` and its draft model. rule: of verification."""

    target: FixedRowsTarget
    drafter: Drafter
    place: ContextRow
    budget: Budget
    sampling: Sampling
    rule: str

    def target_distribution(self, context: Context, after: Sequence[int] = ()) -> Probabilities:
        """Return the distribution of plain sampling after `context` and `after`."""
        self.place.at = context.row
        return probabilities(self.target.row_after(after), self.sampling, [*context.tokens, *after])

    def first_q(self, context: Context) -> Probabilities | None:
        """Return the distribution of the first drafted token, one-hot if deterministic; None without one."""
        self.place.at = context.row
        budget = self.budget.limited_to(1, self.budget.nodes, self.budget.width)
        state = self.drafter.open(context.tokens, 0)
        try:
            tree = self.drafter.propose([(state, budget)])[0]
        finally:
            state.close()
        if not tree:
            return None
        child = tree.children(ROOT)[0]
        q, out = tree.q and tree.q[child], np.zeros(self.target.vocab.size)
        if q is None:
            out[tree.tokens[child]] = 1.0
        else:
            out[: len(q)] = q
        return out


def select_contexts(setup: SamplingSetup, places: Sequence[Context], n: int) -> list[Context]:
    """Return `n` contexts, of different texts if equally good, where the first token is drafted, often
    accepted and often rejected: then mistakes of acceptance and of residuals both show."""
    scores = {place.row: uncertainty(setup, place) for place in places}
    seen: Counter[int] = Counter()  # by text
    for place in sorted(places, key=lambda place: -scores[place.row]):
        seen[place.text] += 1
        scores[place.row] /= seen[place.text]
    return sorted(places, key=lambda place: -scores[place.row])[:n]


def uncertainty(setup: SamplingSetup, context: Context) -> float:
    """Return the variance of whether the first drafted token is accepted; 0 without a draft."""
    if (q := setup.first_q(context)) is None:
        return 0.0
    accepted = float(np.minimum(setup.target_distribution(context), q).sum())
    return accepted * (1.0 - accepted)
