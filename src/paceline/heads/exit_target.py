"""A head on the target's first layers, as a draft model: these layers' own Target, and an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from paceline.heads.arrays import zeros
from paceline.heads.decoder import KeyValueCache
from paceline.heads.draft_base import DraftForward
from paceline.heads.exit_session import ExitSession, KangarooSession
from paceline.heads.exits import KangarooHead
from paceline.heads.files import HeadFiles
from paceline.heads.target import HeadBase, HeadTarget
from paceline.speculative.interfaces import RequiredOutputs, Session, Target
from paceline.speculative.tree import DraftTree


class ExitBase(HeadBase, Protocol):
    """A target whose first layers can be run by themselves (SupportsExits in backends/interface.py)."""

    def first_layers(self, n: int) -> Target: ...


class ExitTarget(HeadTarget):
    """An early exit or a Kangaroo adapter beside its target. Raises ModelError for another target's head."""

    def __init__(self, files: HeadFiles, base: ExitBase, *computing: Any) -> None:
        super().__init__(files, base, *computing)
        self.exit_layer = self.config.layer_ids[self.config.default_exit]
        self._first_layers = base.first_layers(self.exit_layer)
        self._want = RequiredOutputs(layers=(self.exit_layer,))
        self.caps = self._first_layers.caps

    def _compute_two_rows(self) -> None:
        head, hidden = self._head, zeros(self._like, (2, self.config.target.hidden))
        if isinstance(head, KangarooHead):
            head.logits(head.forward(hidden, range(2), [KeyValueCache() for _ in head.layers], None))
        else:
            head.logits(hidden, self.config.default_exit)

    @property
    def description(self) -> str:
        return f"{super().description} after {self.exit_layer} layers"

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"first_layers": self.exit_layer, "target": self._base.identity()}

    def open(self, beside: Session | None = None) -> ExitSession | KangarooSession:
        like, session = self._like, self._first_layers.open(beside)
        if isinstance(self._head, KangarooHead):
            return KangarooSession(self._head, session, like, self.caps.n_ctx)
        return ExitSession(self._head, self.config.default_exit, session, like)

    def reopen(self, session: KangarooSession, beside: Session | None) -> None:
        """Give a retained session of another text that begins alike its first layers again."""
        session.first_layers = self._first_layers.open(beside)

    def _forward(self, batch: Sequence[tuple[Any, DraftTree | int]]) -> list[DraftForward]:
        outs, width = list[DraftForward](), self.config.target.hidden
        inner = [(session.first_layers, first_layers_part(session, tree)) for session, tree in batch]
        for (session, tree), out in zip(batch, self._first_layers.forward(inner, self._want), strict=True):
            if isinstance(tree, int):
                session.read(tree)
                outs.append(DraftForward(self, [], 0, tree))
                continue
            found = out.features
            # A tree of the last pass has no new rows.
            hidden: Any = () if found.hidden is None else found.hidden[found.lead :]
            first, rows = session.compute_rows(tree, hidden[:, 0, :width] if len(hidden) else hidden)
            outs.append(DraftForward(self, rows, first, out.computed))
        return outs

    def forget(self) -> None:
        self._first_layers.forget()

    def close(self) -> None:
        self._first_layers.close()


def first_layers_part(session: Any, tree: DraftTree | int) -> DraftTree | int:
    """Return what the first layers compute; an adapter may have to read more tokens than they."""
    return min(tree, session.first_layers.pending_tokens) if isinstance(tree, int) else tree
