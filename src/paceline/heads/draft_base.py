"""What all drafts have that draw on another model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.config import HeadConfig
from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import Caps, RequiredOutputs, Session, SessionBatch

Ids = NDArray[np.int64]
Row = NDArray[np.float32]  # logits
MAX_BRANCHES, MAX_ROWS = 64, 512


class DraftBase(DelegatingTarget, ABC):
    """A draft in the folder `path`, around the model `inner` or next to it."""

    kind: str  # as in drafter_table.HEADS
    modification = ""

    def __init__(self, path: Path, inner: Any) -> None:
        super().__init__(inner)
        self.path = path
        self.on_forward: Callable[[int, int, float], None] | None = None
        self.settings, self.weight_bytes = inner.settings, inner.weight_bytes
        self._passes = 0  # to notice reads of an outdated output
        self._ids: Ids | None = None  # of the tokens that can be drafted, None for all

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def origin(self) -> str:
        return str(self.path)

    @property
    def token_trie(self) -> Any:
        return self.inner.token_trie

    def forward(self, batch: SessionBatch[Any], want: RequiredOutputs) -> list[DraftForward]:
        began = perf_counter()
        self._passes += 1
        outs = self._forward(batch)
        if self.on_forward is not None:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, len(batch[0][0].tokens), perf_counter() - began)
        return outs

    def identity(self) -> dict[str, Any]:
        """See ModelSetup. By default that of the model around which the draft is, or next to it."""
        return {**self.inner.identity(), "draft": self.kind}

    @abstractmethod
    def _forward(self, batch: SessionBatch[Any]) -> list[DraftForward]:
        """Compute a batch."""

    def scatter(self, row: Row) -> Row:
        """Return logits of the target's vocabulary, minus infinity for tokens that are not drafted."""
        if self._ids is None:
            return row
        out = np.full(self.vocab.size, -np.inf, np.float32)
        out[self._ids] = row
        return out


class HeadBase(DraftBase):
    """A head whose sessions (heads/session.py) are given the hidden states of the target `inner`.
    max_depth: tokens of a draft."""

    config: HeadConfig
    max_depth: int

    def __init__(self, path: Path, inner: Any) -> None:
        super().__init__(path, inner)
        self.caps = Caps(
            max_branches=MAX_BRANCHES,
            rollback="free",
            max_sessions=inner.caps.max_sessions,
            max_batch_tokens=MAX_ROWS,
            max_prefill_tokens=MAX_ROWS,
            n_ctx=inner.caps.n_ctx,
        )

    @abstractmethod
    def open(self, beside: Session | None = None) -> Any:
        """See Target."""

    def reopen(self, session: Any, beside: Session | None) -> None:
        """Prepare a session that was closed and rewound for another text. beside: the target's session."""

    def forget(self) -> None:
        """Do nothing: closed sessions are the drafter's."""

    def _forward(self, batch: SessionBatch[Any]) -> list[DraftForward]:
        """See DraftBase, for sessions that compute by themselves (NetworkSession)."""
        outs = list[DraftForward]()
        for session, tree in batch:
            if isinstance(tree, int):
                session.read(tree)
                outs.append(DraftForward(self, [], 0, tree))
                continue
            pending = session.pending_tokens
            first, rows = session.compute(tree)
            outs.append(DraftForward(self, rows, first, pending + len(rows) - first))
        return outs


class DraftForward(LogitsOutput):
    """Rows `first`, `first + 1`, ... of a session."""

    def __init__(self, draft: DraftBase, rows: Sequence[Row], first: int, computed: int) -> None:
        super().__init__(computed)
        self._draft, self._rows, self._first = draft, list(rows), first
        self._pass = draft._passes

    def draft_logits(self, row: int) -> tuple[Ids | None, Row]:
        """Return the ids of the draft vocabulary, None for all, and their logits."""
        row_index(row, range(self._first, len(self._rows)), self._pass == self._draft._passes)
        return self._draft._ids, self._rows[row]

    def logits(self, row: int) -> Row:
        return self._draft.scatter(self.draft_logits(row)[1])
