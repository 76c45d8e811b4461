"""The example of docs/architecture.md: a backend whose rows depend on the sum of all tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import UNLIMITED, Caps, Features, RequiredOutputs, Session
from paceline.speculative.sessions import TreeSession
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

N_CTX = 64


class SumSession(TreeSession):
    """sums: after each cached token, the first one before any. drafted: after the root and all nodes."""

    def __init__(self) -> None:
        super().__init__(N_CTX)
        self.sums, self.drafted = [0], list[int]()

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - len(self.sums))

    def prefill(self, n: int) -> None:
        self.require_pending(n)
        for token in self.tokens[len(self.sums) - 1 :][:n]:
            self.sums.append(self.sums[-1] + token)

    def _compute(self, tree: DraftTree, first: int) -> None:
        del self.drafted[first:]
        if first == 0:
            self.drafted.append(self.sums[-1] + self.tokens[-1])
        for node in range(len(self.drafted) - 1, len(tree)):
            self.drafted.append(self.drafted[tree.parents[node] + 1] + tree.tokens[node])

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        self.sums += [self.drafted[0], *(self.drafted[node + 1] for node in path)]

    def _rewind(self) -> None:
        self.drafted = []


class SumOutput(LogitsOutput):
    """Rows `first`, `first + 1`, ... of a session."""

    def __init__(self, target: SumTarget, sums: list[int], first: int, computed: int, top_k: int) -> None:
        self._target, self._pass, self._sums, self._first = target, target.passes, sums, first
        super().__init__(computed, Features(self.top_k(range(first, len(sums)), top_k)))

    def logits(self, row: int) -> NDArray[np.float64]:
        row_index(row, range(self._first, len(self._sums)), self._pass == self._target.passes)
        return np.cos(np.arange(self._target.vocab.size) + self._sums[row])


class SumTarget:
    """passes: notices reads of an outdated output."""

    origin, passes = "sums", 0

    def __init__(self, n_vocab: int) -> None:
        self.vocab = Vocab(n_vocab, "sums", None, frozenset(), False, False, lambda _: b"", lambda _: b"")
        self.caps = Caps(64, "free", 64, UNLIMITED, UNLIMITED, N_CTX, exact=True)

    def open(self, beside: Session | None = None) -> SumSession:
        return SumSession()

    def forward(
        self, batch: Sequence[tuple[SumSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[SumOutput]:
        self.passes += 1
        outs = []
        for session, tree in batch:
            n = tree if isinstance(tree, int) else session.pending_tokens
            session.prefill(n)
            if isinstance(tree, int):
                outs.append(SumOutput(self, [], 0, n, 0))
                continue
            first = session.compute_tree(tree)
            computed = n + len(tree) + 1 - first
            outs.append(SumOutput(self, session.drafted, first, computed, want.top_k))
        return outs

    def forget(self) -> None: ...

    def close(self) -> None: ...
