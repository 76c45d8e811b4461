"""A view of a target whose greedy tokens are plain decoding's, a row at a time: near-ties are rechecked.

Where the two likeliest tokens of a row that was computed among others are closer than the noise of such
passes, the row cannot say which one plain decoding would choose. The cells that batched passes wrote since
the last recheck are then computed again one at a time, as plain decoding does, and the row with them. Every
other row is right as long as `bound` is: the most that a batched pass, and the cells of those before it, move
two logits apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import ForwardOutput, RequiredOutputs, Session
from paceline.speculative.resumable_session import ResumableSession
from paceline.speculative.sampling import Logits, argmax
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

NOTHING = RequiredOutputs()


class RecheckedTarget:
    """`real`, with near-ties decided by single rows. rebuild: also compute the cells again that batched
    passes wrote; without it a recheck is cheap, and right only where their drift does not matter."""

    def __init__(self, real: Any, bound: float, *, rebuild: bool = True) -> None:
        self.real, self.bound, self.rebuild = real, bound, rebuild
        self.rechecked = self.rebuilt = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)  # its vocabulary, text, path, ...

    def open(self, beside: Session | None = None) -> RecheckedSession:
        return RecheckedSession(self, ResumableSession(self.real))

    def forward(
        self, batch: Sequence[tuple[RecheckedSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ForwardOutput]:
        outs = self.real.forward([(session.real, tree) for session, tree in batch], want)
        return [
            out if isinstance(tree, int) else RecheckedForward(self, session, tree, out)
            for (session, tree), out in zip(batch, outs, strict=True)
        ]


class RecheckedSession:
    """single: how many of the first committed tokens have cells as plain decoding would write them."""

    def __init__(self, target: RecheckedTarget, reader: ResumableSession) -> None:
        self._target, self._reader = target, reader
        self.single = 0
        self.answer: RecheckedForward | None = None

    @property
    def tokens(self) -> Sequence[int]:
        return self.real.tokens if self.answer is None else self.answer.before

    @property
    def real(self) -> Session:
        return self._reader.session

    @property
    def pending_tokens(self) -> int:
        return self.real.pending_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        text = [*self.tokens, *tokens]
        self.answer = None
        self._reader.sync_to(text)
        # The end of a prompt may travel with the next pass: let that be one like plain decoding's.
        self.row()
        self.real.extend(())
        self.single = len(text) - 1

    def row(self) -> ForwardOutput:
        """The root's row, computed by itself."""
        out: ForwardOutput = self._target.real.forward([(self.real, EMPTY)], NOTHING)[0]
        return out

    def recompute(self, text: Sequence[int]) -> Logits:
        """The row after `text`, over cells that were computed one at a time."""
        self._target.rechecked += 1
        if not self._target.rebuild:
            self._reader.sync_to(list(text))
            return self.row().logits(0).copy()
        self._reader.sync_to(list(text[: self.single + 1]))
        for token in text[self.single + 1 :]:
            self._target.rebuilt += 1
            self.row()
            self.real.commit([], token)
        self.single = len(text) - 1
        return self.row().logits(0).copy()

    def commit(self, path: Sequence[int], root: int) -> None:
        answer = self.answer
        assert answer is not None, "commit before forward: there is nothing to commit"
        self.answer = None
        if answer.rechecked:
            # The real session has gone its own way; whatever it computed of this text stays.
            text = [*answer.before, *(answer.tree.tokens[node] for node in path), root]
            self.single = min(self.single + 1, len(text) - 1)
            self._reader.sync_to(text)
            return
        if not len(answer.tree) and self.single == len(self.real.tokens) - 1:
            self.single += 1
        self.real.commit(path, root)

    def close(self) -> None:
        self._reader.close()


class RecheckedForward(LogitsOutput):
    """The rows of one pass. From the first recheck on each further row is computed by itself."""

    def __init__(
        self, target: RecheckedTarget, session: RecheckedSession, tree: DraftTree, out: ForwardOutput
    ) -> None:
        super().__init__(out.computed, out.features)
        self._target, self._session, self._out = target, session, out
        self.tree, self.before = tree, list(session.real.tokens)
        self._copies: dict[int, Logits] = {}
        self.rechecked = False
        session.answer = self

    def argmax(self, row: int) -> int:
        logits = self.logits(row)
        drifted = self._target.rebuild and self._session.single < len(self.before) - 1
        if (len(self.tree) or drifted) and row not in self._copies:
            second, first = np.partition(logits, -2)[-2:]
            if first - second < self._target.bound:
                logits = self._recheck(row)
        return argmax(logits)

    def logits(self, row: int) -> Logits:
        if row in self._copies:
            return self._copies[row]
        return self._recheck(row) if self.rechecked else self._out.logits(row)

    def _recheck(self, row: int) -> Logits:
        node = row - 1
        if not self.rechecked:  # the pass's own rows are about to be overwritten: keep those of the path
            above = node
            while above != ROOT:
                above = self.tree.parents[above]
                self._copies[above + 1] = self._out.logits(above + 1).copy()
        self.rechecked = True
        self._copies[row] = self._session.recompute([*self.before, *self.tree.path_tokens(node)])
        return self._copies[row]
