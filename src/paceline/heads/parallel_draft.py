"""A parallel draft: a small model that reads the root and mask tokens in one pass, and drafts a token at each
(PARD, An et al. 2025, arXiv:2504.18583)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.heads.draft_base import MAX_BRANCHES, DraftBase, DraftForward
from paceline.speculative.interfaces import NO_OUTPUTS, Session, SessionBatch
from paceline.speculative.sessions import DerivedSession, ResumableSession
from paceline.speculative.tree import DraftTree, chain


class ParallelDraft(DraftBase):
    """A draft model `inner`, a Backend, whose row at depth d is that of its mask d.
    mask_token: stands for a token that is not drafted yet. depth: tokens drafted in a pass."""

    kind = "pard"

    def __init__(self, path: Path, inner: Any, mask_token: int, depth: int) -> None:
        super().__init__(path, inner)
        self.max_depth = depth
        self.masks = chain([mask_token] * (depth - 1), self.kind)
        # Any tree can be drafted: its nodes take the rows of the masks.
        self.caps = replace(inner.caps, max_branches=MAX_BRANCHES)

    @property
    def description(self) -> str:
        return f"{self.inner.description}, {self.max_depth} tokens a pass"

    def identity(self) -> dict[str, Any]:
        return {**self.inner.identity(), "masks": len(self.masks)}

    def open(self, beside: Session | None = None) -> ParallelDraftSession:
        return ParallelDraftSession(ResumableSession(self.inner))

    def _forward(self, batch: SessionBatch[Any]) -> list[DraftForward]:
        firsts = [0 if isinstance(tree, int) else session.compute_tree(tree) for session, tree in batch]
        due = [
            (session, tree if isinstance(tree, int) else self.masks)
            for session, tree in batch
            if isinstance(tree, int) or not session.rows
        ]
        computed = dict[int, int]()
        outs = self.inner.forward([(session.inner, tree) for session, tree in due], NO_OUTPUTS) if due else ()
        for (session, tree), out in zip(due, outs, strict=True):
            computed[id(session)] = out.computed
            if not isinstance(tree, int):
                session.rows = [out.logits(row).copy() for row in range(len(tree) + 1)]
        return [
            DraftForward(self, session.rows_of(tree), first, computed.get(id(session), 0))
            for (session, tree), first in zip(batch, firsts, strict=True)
        ]


class ParallelDraftSession(DerivedSession):
    """A session of the draft model. rows: logits of the root and the masks, once computed."""

    def __init__(self, reader: ResumableSession) -> None:
        super().__init__(reader)
        self.rows: list[Any] = []

    def rows_of(self, tree: DraftTree | int) -> list[Any]:
        """Return the rows of a tree, by the depth of its nodes."""
        if isinstance(tree, int):
            return []
        return [self.rows[min(depth, len(self.rows) - 1)] for depth in (0, *tree.depths())]

    def _append(self, tokens: Sequence[int]) -> None:
        self.rows = []
        self.inner.extend(tokens)
