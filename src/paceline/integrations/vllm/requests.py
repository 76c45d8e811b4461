"""Tracking of the requests in the rows of vLLM's batch.

vLLM shows a drafter arrays without request ids, and rows move. So a request is identified by the length and
the last tokens of its text before the step. A mistaken identity makes drafts worse, never the output.

A request appears at every step or, with pipeline stages, at every so many steps. A request that is missing
for longer has ended or was preempted: its state is dropped, and made anew if it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.interfaces import DrafterState
from paceline.speculative.policy.acceptance import Recent
from paceline.speculative.tree import EMPTY, DraftTree

Tokens = NDArray[np.int32]
TextSuffix = tuple[int, bytes]
SUFFIX_TOKENS = 64  # that identify a text


@dataclass(eq=False, slots=True)
class TrackedRequest:
    """A request.
    memory: the state of the drafters.
    ending: the identity of the text so far.
    row, step: the last row and step of the request.
    draft: the last draft.
    recent: the recent outcomes of its drafts."""

    memory: Any
    ending: TextSuffix
    row: int
    step: int
    draft: DraftTree = EMPTY
    recent: Recent = field(default_factory=dict)


class RequestTracker:
    """The requests in the batch.
    opener: makes the drafters' state of a text.
    patience: the number of steps for which a request may be missing."""

    def __init__(self, opener: Callable[[list[int]], DrafterState], patience: int = 0) -> None:
        self._open, self._patience, self._step = opener, patience, 0
        self._by_ending: dict[TextSuffix, list[TrackedRequest]] = {}

    def begin(self) -> None:
        """Begin a step of the batch."""
        self._step += 1

    def find(self, row: int, text: Tokens, n_new: int) -> tuple[TrackedRequest, Sequence[int]]:
        """Return the request in a row, which is untracked until `commit`, and its new tokens.
        n_new: the number of tokens that this step has added."""
        known = len(text) - n_new
        before = text_suffix(text[:known])
        waiting = [request for request in self._by_ending.get(before, ()) if request.step < self._step]
        # Of several requests with one text, prefer the last in this row: its draft was verified here.
        request = next((it for it in waiting if it.row == row), waiting[0] if waiting else None)
        if request is None:
            request = TrackedRequest(self._open(text[:known].tolist()), before, row, self._step)
        else:
            self._remove(request)
        return request, text[known:].tolist()

    def commit(self, request: TrackedRequest, row: int, text: Tokens) -> None:
        """Track a request again, with its text and row."""
        request.ending, request.row, request.step = text_suffix(text), row, self._step
        self._by_ending.setdefault(request.ending, []).append(request)

    def end(self) -> list[TrackedRequest]:
        """End the step. Return the requests that were missing for too long, and drop them."""
        requests = [request for same_ending in self._by_ending.values() for request in same_ending]
        missing = [request for request in requests if self._step - request.step > self._patience]
        for request in missing:
            self._remove(request)
        return missing

    def _remove(self, request: TrackedRequest) -> None:
        same_ending = self._by_ending[request.ending]
        same_ending.remove(request)
        if not same_ending:
            del self._by_ending[request.ending]


def text_suffix(text: Tokens) -> TextSuffix:
    return len(text), text[-SUFFIX_TOKENS:].tobytes()
