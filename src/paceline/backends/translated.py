"""A draft model of another vocabulary, as a Target in the target's vocabulary.

This is token-level intersection (Timor et al. 2025, arXiv:2502.05202): logits are moved to the target's ids,
and are minus infinity for tokens that the draft lacks. Verification is exact for any draft distribution.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import (
    NO_OUTPUTS,
    Features,
    ForwardOutput,
    RequiredOutputs,
    Session,
    SessionBatch,
    Target,
)
from paceline.speculative.sampling import Logits
from paceline.speculative.sessions import DerivedSession, ResumableSession
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from paceline.vocab.translation import Translation, largest, window


class CrossVocabTarget(DelegatingTarget):
    """Runs `draft` in the vocabulary of `translation.target`.
    The draft reads the end of a text that is longer than its context."""

    def __init__(self, draft: Target, translation: Translation) -> None:
        super().__init__(draft)
        self.translation = translation
        self.vocab = translation.target.vocab
        self.caps = replace(draft.caps, n_ctx=sys.maxsize, max_tree_nodes=largest(draft.caps) - 1)

    def open(self, beside: Session | None = None) -> CrossVocabSession:
        return CrossVocabSession(self.inner, self.translation)

    def forward(self, batch: SessionBatch[CrossVocabSession], want: RequiredOutputs) -> list[ForwardOutput]:
        firsts = [0 if isinstance(tree, int) else session.compute_tree(tree) for session, tree in batch]
        work = [(s.inner, tree if isinstance(tree, int) else s.draft_tree) for s, tree in batch]
        outs = self.inner.forward(work, NO_OUTPUTS)
        return [
            out
            if isinstance(tree, int)
            else CrossVocabForward(out, self.translation, session.last_draft_nodes, first, want)
            for out, (session, tree), first in zip(outs, batch, firsts, strict=True)
        ]


class CrossVocabSession(DerivedSession):
    """A session of the draft. The prompt is translated as a whole, and each later token by itself.
    draft_tree: the tree in the draft's tokens. last_draft_nodes: the last draft node of each target node."""

    def __init__(self, draft: Target, translation: Translation) -> None:
        super().__init__(ResumableSession(draft))
        self._caps, self._translation = draft.caps, translation
        self._read: list[int] = []

    def _append(self, tokens: Sequence[int]) -> None:
        if self.tokens:
            for token in tokens:
                self._read += self._translation.token(token)
        else:
            self._read = self._translation.prompt(tokens)
        self._reader.sync_to(window(self._read, self._translation.lead, self._caps))

    def _compute(self, tree: DraftTree, first: int) -> None:
        """Translate the new nodes."""
        if first == 0:
            self.draft_tree, self.last_draft_nodes = EMPTY, [ROOT]
        tokens, parents = list(self.draft_tree.tokens), list(self.draft_tree.parents)
        for node in range(len(self.last_draft_nodes) - 1, len(tree)):
            end = self.last_draft_nodes[tree.parents[node] + 1]
            for token in self._translation.token(tree.tokens[node]):
                parents.append(end)
                end = len(tokens)
                tokens.append(token)
            self.last_draft_nodes.append(end)
        n = len(tokens)
        self.draft_tree = DraftTree(tuple(tokens), tuple(parents), (1.0,) * n, ("draft",) * n)


class CrossVocabForward(LogitsOutput):
    """Rows from `first` on, each taken from the last draft node of its target node."""

    def __init__(
        self,
        out: ForwardOutput,
        translation: Translation,
        ends: Sequence[int],
        first: int,
        want: RequiredOutputs,
    ) -> None:
        self._out, self._first = out, first
        self._rows = [node + 1 for node in ends]
        self._common = translation.common
        self._size = translation.target.vocab.size
        super().__init__(out.computed, Features(self.top_k(range(first, len(ends)), want.top_k)))

    def logits(self, row: int) -> Logits:
        row_index(row, range(self._first, len(self._rows)))
        theirs = self._out.logits(self._rows[row])
        ours: Logits = np.full(self._size, -np.inf, dtype=theirs.dtype)
        ours[self._common.target_ids] = theirs[self._common.draft_ids]
        return ours
