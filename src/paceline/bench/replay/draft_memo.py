"""A draft model whose outputs are remembered, so that many replays of the same answers compute them once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs, Session, SessionBatch
from paceline.speculative.sampling import Logits, filter_top_k
from paceline.speculative.sessions import ResumableSession, TreeSession
from paceline.speculative.tree import DraftTree

TOP = 64  # log probabilities of a row that are remembered; the others share the rest of the probability


class RememberedRow(NamedTuple):
    """The likeliest tokens with their log probabilities. rest: of each other token, their mean."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    rest: float

    @classmethod
    def of(cls, logits: Logits) -> RememberedRow:
        ids = filter_top_k(logits, TOP)
        weights = np.exp(logits - logits.max())
        total = weights.sum()
        others = float(total - weights[ids].sum()) / max(1, len(logits) - TOP)
        with np.errstate(divide="ignore"):
            return cls(ids, np.log(weights[ids] / total), float(np.log(max(0.0, others) / total)))


class DraftMemo(DelegatingTarget):
    """A draft model, which stays open when this is closed. rows: by the hash of the tokens so far."""

    def __init__(self, inner: object) -> None:
        super().__init__(inner)
        self.rows: dict[int, RememberedRow] = {}

    def open(self, beside: Session | None = None) -> MemoSession:
        return MemoSession(self)

    def forward(self, batch: SessionBatch[MemoSession], want: RequiredOutputs) -> list[MemoOutput]:
        outs = []
        for session, tree in batch:
            computed = tree if isinstance(tree, int) else session.pending_tokens
            session.n_cached += computed
            if not isinstance(tree, int):
                computed += len(tree) + 1 - session.compute_tree(tree)
            outs.append(MemoOutput(self.vocab.size, session.rows, computed))
        return outs

    def forget(self) -> None: ...

    def close(self) -> None: ...


class MemoSession(TreeSession):
    """A session that computes only rows which are not remembered. rows: of the root and the nodes of the last
    tree. n_cached: tokens that a session without a memory would have in its cache."""

    def __init__(self, target: DraftMemo) -> None:
        super().__init__()
        self._target, self._key, self.n_cached = target, 0, 0
        self._reader: ResumableSession | None = None
        self.rows: list[RememberedRow] = []

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 1 - self.n_cached)

    def _append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._key = hash((self._key, token))

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        self.n_cached = len(self.tokens) + len(path)

    def _compute(self, tree: DraftTree, first: int) -> None:
        keys, remembered = [self._key], self._target.rows
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            keys.append(hash((keys[parent + 1], token)))
        if any(key not in remembered for key in keys):
            target = self._target.inner
            self._reader = self._reader or ResumableSession(target)
            self._reader.sync_to(self.tokens)
            session = self._reader.session
            if session.pending_tokens:
                target.forward([(session, session.pending_tokens)], NO_OUTPUTS)
            (out,) = target.forward([(session, tree)], NO_OUTPUTS)
            for row in range(len(keys) - out.computed, len(keys)):
                remembered[keys[row]] = RememberedRow.of(out.logits(row))
        self.rows = [remembered[key] for key in keys]

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()


class MemoOutput(LogitsOutput):
    """Remembered rows as log probabilities."""

    def __init__(self, n_vocab: int, rows: Sequence[RememberedRow], computed: int) -> None:
        self._n_vocab, self._rows = n_vocab, rows
        super().__init__(computed)

    def logits(self, row: int) -> Logits:
        ids, values, rest = self._rows[row]
        out = np.full(self._n_vocab, rest, np.float32)
        out[ids] = values
        return out
