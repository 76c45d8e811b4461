"""A head on the target's first layers, as a draft model: these layers' own Target, and an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.heads.arrays import array, to_numpy, zeros
from paceline.heads.decoder import KeyValueCache, as_mask, causal_mask
from paceline.heads.draft_base import DraftForward
from paceline.heads.files import HeadFiles
from paceline.heads.networks import ExitsHead, KangarooHead
from paceline.heads.session import NetworkSession, Row, tree_mask
from paceline.heads.target import HeadTarget
from paceline.speculative.interfaces import RequiredOutputs, Session, SessionBatch
from paceline.speculative.sessions import DelegatingSession
from paceline.speculative.tree import DraftTree

MIN_REUSED_ROWS = 16  # of another text; fewer are read again, in one product


class ExitTarget(HeadTarget):
    """An early exit or a Kangaroo adapter beside its target, a SupportsExits (backends/interface.py). Raises
    ModelError for another target's head."""

    def __init__(self, files: HeadFiles, base: Any, *computing: Any) -> None:
        super().__init__(files, base, *computing)
        self.exit_layer = self.config.layer_ids[self.config.default_exit]
        self._first_layers = base.first_layers(self.exit_layer)
        self._want = RequiredOutputs(layers=(self.exit_layer,))
        self.caps = self._first_layers.caps

    def _two_rows(self) -> Any:
        head, hidden = self._head, zeros(self._like, (2, self.config.target.hidden))
        if isinstance(head, KangarooHead):
            hidden = head.forward(hidden, range(2), [KeyValueCache() for _ in head.layers], None)
            return head.logits(hidden)
        return head.logits(hidden, self.config.default_exit)

    @property
    def description(self) -> str:
        return f"{super().description} after {self.exit_layer} layers"

    def identity(self) -> dict[str, Any]:
        return super().identity() | {"first_layers": self.exit_layer, "target": self.inner.identity()}

    def open(self, beside: Session | None = None) -> ExitSession | KangarooSession:
        like, session = self._like, self._first_layers.open(beside)
        if isinstance(self._head, KangarooHead):
            return KangarooSession(self._head, session, like, self.caps.n_ctx)
        return ExitSession(self._head, self.config.default_exit, session, like)

    def reopen(self, session: KangarooSession, beside: Session | None) -> None:
        """Give a retained session of another text that begins alike its first layers again."""
        session.inner = self._first_layers.open(beside)

    def _forward(self, batch: SessionBatch[Any]) -> list[DraftForward]:
        outs, width = list[DraftForward](), self.config.target.hidden
        inner = [  # an adapter may have to read more tokens than the first layers
            (one.inner, min(tree, one.inner.pending_tokens) if isinstance(tree, int) else tree)
            for one, tree in batch
        ]
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


class ExitSession(DelegatingSession):
    """A text in an early exit, which only reads the hidden states of the last pass.
    place: of the exit among those of the head."""

    def __init__(self, head: ExitsHead, place: int, first_layers: Session, like: Any) -> None:
        super().__init__(first_layers)
        self._head, self._place, self._like = head, place, like
        self._rows: list[Row] = []

    def read(self, n: int) -> None:
        """Do nothing: an adapter has no context."""

    def compute_rows(self, tree: DraftTree, hidden: Any) -> tuple[int, list[Row]]:
        """Return the first new row, and the logits of the root and of all nodes.
        hidden: [new rows, width], the first layers' output for the last rows of the tree."""
        first = 1 + len(tree) - len(hidden)
        del self._rows[first:]
        if len(hidden):
            logits = self._head.logits(array(self._like, hidden), self._place)
            self._rows += list(to_numpy(logits))
        return first, self._rows


class KangarooSession(NetworkSession):
    """A text in a Kangaroo adapter. The target's own passes give the hidden states of the text, and the first
    layers those of the root and of drafted tokens."""

    def __init__(self, head: KangarooHead, first_layers: Session, like: Any, n_ctx: int) -> None:
        super().__init__(head, like, n_ctx)
        self.inner = first_layers
        self._states = zeros(like, (0, self._shape[1]))  # of the root and of the nodes

    @property
    def pending_tokens(self) -> int:
        return max(self.inner.pending_tokens, len(self.tokens) - 1 - self._next, 0)

    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        self.inner.extend(tokens)

    def commit(self, path: Sequence[int], root: int) -> None:
        super().commit(path, root)
        self.inner.commit(path, root)

    def close(self) -> None:
        super().close()
        self.inner.close()

    def rewind(self, n: int) -> None:
        if n < MIN_REUSED_ROWS:
            return super().rewind(0)
        super().rewind(n + 1)  # a row takes no token behind its own
        if self._known > n:
            self._waiting, self._known = self._waiting[:-1], n
        return None

    def read(self, n: int) -> None:
        super().read(max(0, min(n, len(self.tokens) - 1 - self._next)))

    def compute_rows(self, tree: DraftTree, hidden: Any) -> tuple[int, list[Row]]:
        """See ExitSession."""
        first = 1 + len(tree) - len(hidden)
        if len(hidden):
            states = zeros(self._like, (1 + len(tree), self._shape[1]))
            states[:first], states[first:] = self._states[:first], array(self._like, hidden)
            self._states = states
        return self.compute(tree)

    def _read(self, tokens: Sequence[int], features: Any) -> None:
        n, start = len(features), self._next - self._first
        mask = as_mask(self._like, causal_mask(n, start + n)) if n > 1 else None
        positions = range(self._next, self._next + n)
        self._head.extend(features[:, 0], positions, self._caches, mask)

    def _root(self, token: int, features: Any) -> Row:
        return self._forward(self._states[:1], [self._next], None)[0]

    def _nodes(self, tree: DraftTree, known: int) -> None:
        if known == len(tree):
            return
        depths, nodes = tree.depths(), range(known, len(tree))
        mask = tree_mask(tree, nodes, self._next - self._first)
        positions = [self._next + depths[node] for node in nodes]
        self._rows += self._forward(self._states[1 + known :], positions, as_mask(self._like, mask))

    def _forward(self, states: Any, positions: Sequence[int], mask: Any) -> list[Row]:
        outputs = self._head.forward(states, positions, self._caches, mask)
        return list(to_numpy(self._head.logits(outputs)))
