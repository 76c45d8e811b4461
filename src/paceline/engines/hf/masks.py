"""Which places of the cache the rows of a pass attend to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import ROOT
from paceline.engines.hf.session import Rows

Attends = NDArray[np.bool_]


def is_causal(rows: Rows) -> bool:
    """Whether each row attends to all places up to its own: the model's own mask does then."""
    return rows.tree.is_chain


def attends(rows: Rows, window: int | None = None) -> Attends:
    """[rows, places]. A row of the text attends to all places up to its own, a node to the text, the nodes
    above it and itself. window: of these only those fewer positions away than this."""
    place = np.arange(rows.places)
    row = np.arange(rows.start, rows.places)[:, None]
    out: Attends = (place <= row) & ((place <= rows.base) | (row <= rows.base))
    first = rows.base + 1
    if rows.places > first:
        above = lineage(rows)
        begin = max(0, rows.start - first)  # the first new node
        out[max(0, first - rows.start) :, first:] = above[begin:]
    if window is not None:
        position = np.minimum(place, rows.base)
        position[first:] = rows.base + np.array(rows.tree.depths()[: rows.places - first], dtype=np.int64)
        out &= position[row] - position < window
    return out


def lineage(rows: Rows) -> Attends:
    """[nodes, nodes]: whether the second is above the first, or is it."""
    n = len(rows.tree)
    out = np.eye(n, dtype=np.bool_)
    for node, parent in enumerate(rows.tree.parents):
        if parent != ROOT:
            out[node] |= out[parent]
    return out


def side_by_side(masks: Sequence[Attends]) -> Attends:
    """One mask of all their rows and places, each at its own."""
    if len(masks) == 1:
        return masks[0]
    out = np.zeros(np.sum([mask.shape for mask in masks], axis=0), np.bool_)
    row = place = 0
    for mask in masks:
        rows, places = mask.shape
        out[row : row + rows, place : place + places] = mask
        row, place = row + rows, place + places
    return out
