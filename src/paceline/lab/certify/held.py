"""Models whose answers are held fixed, so that drafting and verification can be run thousands of times.

Rows that the real models computed along a text are kept. At the chosen context each model answers what it
said there; below it, what it said somewhere else in the text, the place depending on the path alone. With one
vocabulary the target's and the draft's answers come from the same place, so that drafts are often right;
with two, or below a step that another drafter drafted, they are so less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.answers import Answers
from paceline.core.decode import named
from paceline.core.errors import ContractError, LogitsError
from paceline.core.ports import Caps, Features, Session, Target, Want
from paceline.core.sampling import require_numbers, top_k
from paceline.core.tree import ROOT, DraftTree
from paceline.core.vocab import Vocab
from paceline.engines.noise import teacher_forced

Rows = NDArray[np.float32]


@dataclass
class Place:
    """Which of the recorded rows is that of the context. A session's context is what it was first given."""

    at: int = 0

    def row(self, after: Sequence[int], n: int) -> int:
        """The recorded row that answers for the tokens `after` the context."""
        return self.at if not after else (self.at + 1 + hash(tuple(after))) % n


class HeldTarget:
    """Answers `rows` [n, n_vocab] in the place of `real`, whose vocabulary and text it has."""

    def __init__(self, real: Any, rows: Rows, place: Place) -> None:
        self.rows, self.place = rows, place
        self.vocab: Vocab = real.vocab
        self.origin: str = real.origin
        self.caps: Caps = real.caps
        self.text = getattr(real, "text", None)

    def open(self, beside: Session | None = None) -> HeldSession:
        return HeldSession()

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""

    def forward(self, batch: Sequence[tuple[HeldSession, DraftTree | int]], want: Want) -> list[HeldForward]:
        out = []
        for session, tree in batch:
            if isinstance(tree, int):
                raise ContractError("rows that are held have no prompt that is still to be read")
            session.tree = tree
            out.append(HeldForward(self, session.tokens[session.context :], tree, want))
        return out


class HeldSession:
    unread = 0

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.context = 0
        self.tree: DraftTree | None = None

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.context = self.context or len(tokens)
        self.tree = None

    def keep(self, path: Sequence[int], root: int) -> None:
        if self.tree is None:
            raise ContractError("keep before forward: there is nothing to commit")
        self.tree.check_path(path)
        self.tokens += [*(self.tree.tokens[node] for node in path), root]

    def close(self) -> None:
        """Nothing is held."""


class HeldForward(Answers):
    def __init__(self, target: HeldTarget, after: list[int], tree: DraftTree, want: Want) -> None:
        self._target, self._after, self._tree = target, after, tree
        super().__init__(len(tree) + 1)
        if want.top_k:
            top = np.stack([top_k(self.logits(row), want.top_k) for row in range(len(tree) + 1)])
            self.features = Features(top_k=top)

    def logits(self, row: int) -> Rows:
        node = row - 1
        after = self._after if node == ROOT else [*self._after, *self._tree.path_tokens(node)]
        rows = self._target.rows
        out: Rows = rows[self._target.place.row(after, len(rows))]
        return out


def recorded(target: Target, text: Sequence[int], n: int) -> Rows:
    """The rows [n, n_vocab] that predict the last `n` tokens of `text`, one at a time."""
    return teacher_forced(target, text, max(1, len(text) - n), 1).astype(np.float32)


def require_numbers_of(target: Target, rows: Rows) -> None:
    """Raises LogitsError for rows that its texts can come to, if they do not in what is drawn."""
    try:
        for largest in rows.max(axis=1):
            require_numbers(largest)
    except LogitsError as error:
        raise named(error, target) from error
