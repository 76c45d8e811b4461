"""A parallel draft: a small model that reads the root and mask tokens in one pass, and drafts a token at each
(PARD, An et al. 2025, arXiv:2504.18583)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.heads.draft_base import DraftBase, DraftForward
from paceline.speculative.errors import ContractError
from paceline.speculative.interfaces import NO_OUTPUTS, Session
from paceline.speculative.tree import DraftTree, chain


class ParallelDraft(DraftBase):
    """A draft model `inner`, a Backend, whose row at depth d is that of its mask d.
    mask_token: stands for a token that is not drafted yet. depth: tokens drafted in a pass."""

    kind = "pard"

    def __init__(self, path: Path, inner: Any, mask_token: int, depth: int) -> None:
        super().__init__(path, inner)
        self.max_depth = depth
        self.masks = chain([mask_token] * (depth - 1), self.kind)
        self.vocab, self.settings, self.weight_bytes = inner.vocab, inner.settings, inner.weight_bytes
        # Any tree can be drafted: its nodes take the rows of the masks.
        self.caps = replace(inner.caps, max_branches=64)

    @property
    def description(self) -> str:
        return f"{self._base.description}, {self.max_depth} tokens a pass"

    def identity(self) -> dict[str, Any]:
        return {**self._base.identity(), "masks": len(self.masks)}

    def open(self, beside: Session | None = None) -> ParallelDraftSession:
        return ParallelDraftSession(self._base.open())

    def _forward(self, batch: Sequence[tuple[Any, DraftTree | int]]) -> list[DraftForward]:
        due = [
            (session, tree if isinstance(tree, int) else self.masks)
            for session, tree in batch
            if isinstance(tree, int) or not session.rows
        ]
        computed = dict[int, int]()
        outs = self._base.forward([(session.inner, tree) for session, tree in due], NO_OUTPUTS) if due else ()
        for (session, tree), out in zip(due, outs, strict=True):
            computed[id(session)] = out.computed
            if not isinstance(tree, int):
                session.rows = [out.logits(row).copy() for row in range(len(tree) + 1)]
        return [self._answer(session, tree, computed.get(id(session), 0)) for session, tree in batch]

    def _answer(self, session: ParallelDraftSession, tree: DraftTree | int, computed: int) -> DraftForward:
        if isinstance(tree, int):
            return DraftForward(self, [], 0, computed)
        first = session.begin(tree)
        rows = [session.rows[min(depth, self.max_depth - 1)] for depth in (0, *tree.depths())]
        return DraftForward(self, rows, first, computed)

    def forget(self) -> None:
        self._base.forget()

    def close(self) -> None:
        self._base.close()


class ParallelDraftSession:
    """A session of the draft model. rows: logits of the root and the masks, once computed."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.rows: list[Any] = []
        self._tree: DraftTree | None = None

    @property
    def tokens(self) -> Sequence[int]:
        tokens: Sequence[int] = self.inner.tokens
        return tokens

    @property
    def pending_tokens(self) -> int:
        return int(self.inner.pending_tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.rows, self._tree = [], None
        self.inner.extend(tokens)

    def begin(self, tree: DraftTree) -> int:
        """Begin or extend a tree; return its first new row."""
        known = self._tree
        self._tree = tree
        return 0 if known is None or not tree.starts_with(known) else len(known) + 1

    def commit(self, path: Sequence[int], root: int) -> None:
        if self._tree is None:
            raise ContractError("commit before forward: there is nothing to commit")
        tree = self._tree
        tree.check_path(path)
        self.extend([*(tree.tokens[node] for node in path), root])

    def close(self) -> None:
        self.rows, self._tree = [], None
        self.inner.close()
