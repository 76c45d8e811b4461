"""A draft model of another vocabulary as a Target in the target's (token-level intersection, Timor et al.
2025, arXiv:2502.05202).

Its rows are the draft's, moved to the target's ids, and minus infinity where the draft has no counterpart.
What is drawn from them is drawn from the draft's distribution, masked to the intersection and renormalised;
and verification is exact whatever distribution a draft was drawn from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.core.errors import ContractError, UsageError
from paceline.core.ports import Features, Forward, Logits, Target, Want
from paceline.core.sampling import argmax, top_k
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.engines.llama.session import common_prefix
from paceline.vocab.translation import Translation, largest, window


class TranslatedTarget:
    """Drives `draft` in the vocabulary of `translation.target`. Its sessions have no end: of a text longer
    than the draft's context the draft reads the last part."""

    def __init__(self, draft: Target, translation: Translation) -> None:
        self._draft = draft
        self.translation = translation
        self.vocab = translation.target.vocab
        self.origin = draft.origin
        self.caps = replace(draft.caps, n_ctx=sys.maxsize, rows=largest(draft.caps))

    def open(self) -> TranslatedSession:
        return TranslatedSession(self._draft, self.translation)

    def close(self) -> None:
        self._draft.close()

    def forward(
        self, batch: Sequence[tuple[TranslatedSession, DraftTree]], want: Want
    ) -> list[TranslatedForward]:
        firsts = [session.grow(tree) for session, tree in batch]
        outs = self._draft.forward([(session.inner, session.spelled) for session, _ in batch], Want())
        return [
            TranslatedForward(out, self.translation, session.ends, first, want)
            for out, (session, _), first in zip(outs, batch, firsts, strict=True)
        ]


class TranslatedSession:
    """Owns the draft's session, and what the draft reads: the first text given as a whole, each token after
    it by itself, so that nothing is read twice."""

    def __init__(self, draft: Target, translation: Translation) -> None:
        self._caps = draft.caps
        self._translation = translation
        self.inner: Any = draft.open()
        self._reset()

    def _reset(self) -> None:
        self.tokens: list[int] = []
        self._read: list[int] = []
        self._whole = 1  # tokens of the first text: they were read together
        self._until = [0]  # how far it and each token after it reach in what was read
        self._tree: DraftTree | None = None
        # The tree in the draft's tokens, of which one of ours may be several; and where each of ours ends.
        self.spelled = EMPTY
        self.ends = [ROOT]

    def prefill(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise UsageError("the prompt is empty: give at least one token")
        tokens = list(tokens)
        same = common_prefix(self.tokens, tokens)
        if same < self._whole:
            self._whole = len(tokens)
            self._read = self._translation.prompt(tokens)
            self._until = [len(self._read)]
        else:
            del self._until[same - self._whole + 1 :]
            del self._read[self._until[-1] :]
            for token in tokens[same:]:
                self._read += self._translation.token(token)
                self._until.append(len(self._read))
        self.tokens = tokens
        self._restart()

    def _restart(self) -> None:
        self._tree = None
        self.inner.prefill(window(self._read, self._translation.lead, self._caps))

    def grow(self, tree: DraftTree) -> int:
        """Spell out what is new in `tree`; returns the first row that is."""
        if self._tree is None or not tree.starts_with(self._tree):
            if self._tree is not None:
                self._restart()
            self.spelled, self.ends, first = EMPTY, [ROOT], 0
        else:
            first = len(self.ends)
        tokens, parents = list(self.spelled.tokens), list(self.spelled.parents)
        for node in range(len(self.ends) - 1, len(tree)):
            end = self.ends[tree.parents[node] + 1]
            for token in self._translation.token(tree.tokens[node]):
                parents.append(end)
                end = len(tokens)
                tokens.append(token)
            self.ends.append(end)
        n = len(tokens)
        self.spelled = DraftTree(tuple(tokens), tuple(parents), (1.0,) * n, ("draft",) * n)
        self._tree = tree
        return first

    def keep(self, path: Sequence[int], root: int) -> None:
        if self._tree is None:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        self.prefill([*self.tokens, *(self._tree.tokens[node] for node in path), root])

    def close(self) -> None:
        self.inner.close()
        self._reset()


class TranslatedForward:
    """Rows from `first` on, each read where the draft's spelling of its node ends."""

    def __init__(
        self, out: Forward, translation: Translation, ends: Sequence[int], first: int, want: Want
    ) -> None:
        self._out, self._first = out, first
        self._rows = [node + 1 for node in ends]
        self._common = translation.common
        self._size = translation.target.vocab.size
        top = None
        if want.top_k:
            top = np.stack([top_k(self.logits(row), want.top_k) for row in range(first, len(ends))])
        self.features = Features(top_k=top)

    def argmax(self, row: int) -> int:
        return argmax(self.logits(row))

    def logits(self, row: int) -> Logits:
        if not self._first <= row < len(self._rows):
            raise ContractError(f"row {row} is not among those this forward computed")
        theirs = self._out.logits(self._rows[row])
        ours: Logits = np.full(self._size, -np.inf, dtype=theirs.dtype)
        ours[self._common.target_ids] = theirs[self._common.draft_ids]
        return ours
