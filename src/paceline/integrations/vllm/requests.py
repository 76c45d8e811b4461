"""Whose text is in which row of vLLM's batch.

A drafter's class is shown arrays and no request ids; rows move when requests join and leave. So a request is
known by its text: by how long it was before this step, and how it ended. Two requests of one text are one to
a drafter, and where an ending deceives, drafts are worse and the output is the same.

vLLM shows every request that it decodes at every step, or, with stages in a pipeline, at every so many steps.
One that is missing for longer has ended or was put off: it is forgotten, and indexed anew should it return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.interfaces import DrafterState
from paceline.speculative.policy.acceptance_model import Recent
from paceline.speculative.tree import EMPTY, DraftTree

Tokens = NDArray[np.int32]
TextSuffix = tuple[int, bytes]
SUFFIX_TOKENS = 64  # tokens that a text is known by


@dataclass(eq=False, slots=True)
class TrackedRequest:
    """One request. memory: the drafters'. ending: of what is known of its text. row, step: where and when it
    was last seen. draft: what was proposed for what follows. recent: how its drafts have fared."""

    memory: Any
    ending: TextSuffix
    row: int
    step: int
    draft: DraftTree = EMPTY
    recent: Recent = field(default_factory=dict)


class RequestTracker:
    """Owns the memories of the requests in the batch. opener: makes a memory of a text. patience: steps for
    which a request may be missing."""

    def __init__(self, opener: Callable[[list[int]], DrafterState], patience: int = 0) -> None:
        self._open, self._patience, self._step = opener, patience, 0
        self._by_ending: dict[TextSuffix, list[TrackedRequest]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_ending.values()))

    def begin(self) -> None:
        """A step of the batch begins."""
        self._step += 1

    def find(self, row: int, text: Tokens, n_new: int) -> tuple[TrackedRequest, Sequence[int]]:
        """The request in a row, and the tokens that follow what was known of it. n_new: how many tokens of
        its text this step has added. It is the caller's until `commit`."""
        known = len(text) - n_new
        before = text_suffix(text[:known])
        # Of several with one text the one that was in this row: the draft is its own that was verified.
        waiting = [one for one in self._by_ending.get(before, ()) if one.step < self._step]
        found = next((one for one in waiting if one.row == row), waiting[0] if waiting else None)
        if found is None:
            found = TrackedRequest(self._open(text[:known].tolist()), before, row, self._step)
        else:
            self._remove(found)
        return found, text[known:].tolist()

    def commit(self, request: TrackedRequest, row: int, text: Tokens) -> None:
        """`text` is known of it now, and it is in this row."""
        request.ending, request.row, request.step = text_suffix(text), row, self._step
        self._by_ending.setdefault(request.ending, []).append(request)

    def end(self) -> list[TrackedRequest]:
        """End the step. Returns the requests that have been missing for too long, and are forgotten."""
        requests = [one for same_ending in self._by_ending.values() for one in same_ending]
        missing = [one for one in requests if self._step - one.step > self._patience]
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
