"""Rows of logits of any engine, copied before its next pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, DraftTree


def begun(target: Any, text: Sequence[int], beside: Any = None) -> Any:
    """A new session with this text. beside: a view's session shares the cells of this one."""
    session = target.open() if beside is None else target.open(beside)
    session.extend(text)
    return session


def table(out: Any, tree: DraftTree = EMPTY) -> np.ndarray:
    """The row of the root and of each node."""
    return np.stack([np.array(out.logits(row)) for row in range(len(tree) + 1)])


def rows_of(target: Any, session: Any, tree: DraftTree = EMPTY) -> np.ndarray:
    return table(target.forward([(session, tree)], RequiredOutputs())[0], tree)


def text_rows(target: Any, text: Sequence[int], tree: DraftTree = EMPTY, beside: Any = None) -> np.ndarray:
    """The rows of a session of this text, which is closed again."""
    session = begun(target, text, beside)
    rows = rows_of(target, session, tree)
    session.close()
    return rows
