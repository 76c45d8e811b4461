"""Passes of llama.cpp over several sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.batch import Batch, LlamaForward
from paceline.backends.llama_cpp.cache import LlamaKvCache
from paceline.backends.llama_cpp.extras import NO_EXTRAS, Hidden, JoinedExtras
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.speculative.interfaces import NO_FEATURES, Features, RequiredOutputs, SessionBatch
from paceline.speculative.request import MAX_FUSED_PREFILL
from paceline.speculative.tree import DraftTree

MAX_ROWS = binding.UBATCH  # a prompt with outputs is divided like one without, for equal bits
CHUNK = 2048  # prefill tokens in one pass
N_BATCH = CHUNK + MAX_ROWS

LlamaBatch = SessionBatch[LlamaSession]


@dataclass(frozen=True, slots=True)
class _Part:
    """A session's part of a pass.
    rows, outputs: its rows in the batch, and those of its root and nodes in the logits.
    first: the first output's row. lead: prefilled rows. start: position of the first row."""

    rows: slice
    outputs: slice
    first: int
    lead: int
    start: int

    def features(self, hidden: Hidden | None) -> Features:
        if hidden is None or self.rows.start == self.rows.stop:
            return NO_FEATURES
        return Features(hidden=hidden[self.rows], lead=self.lead, start=self.start)


class PassRunner:
    """The passes over the sessions of a cache."""

    def __init__(self, path: Path, cache: LlamaKvCache, n_vocab: int, *, kernels: bool) -> None:
        self._cache = cache
        self.batch = Batch(N_BATCH, MAX_ROWS, n_vocab, path=path, kernels=kernels)
        self.context: Any = None
        self._passes = 0  # to notice reads of an outdated output

    def finish_sparse_prompts(self, batch: LlamaBatch) -> LlamaBatch:
        """Compute sparse prompts, which have passes to themselves. Return what is left to compute."""
        left: list[tuple[LlamaSession, DraftTree | int]] = []
        for session, tree in batch:
            n = session.until_spread
            if n is not None and not (isinstance(tree, int) and tree <= n):
                self._read(session, n, NO_EXTRAS)
                session.read(0)  # moves the cells if no token was pending
                tree = tree - n if isinstance(tree, int) else tree
            left.append((session, tree))
        return left

    def forward(
        self, batch: LlamaBatch, prefills: Sequence[int], want: RequiredOutputs, extras: JoinedExtras
    ) -> list[LlamaForward]:
        """Compute a tree, or prefill so many tokens, for each session.
        prefills: the tokens to prefill of each session. They have their own passes if they do not fit, or
        would change the shape of a pass."""
        fits = self._fits(sum(prefills), batch, extras)
        if fits and not (any(prefills) and (extras.one_shape or any(map(self._stops, batch, prefills)))):
            return self._run(batch, want, extras)
        starts = [len(session.slot.cached) for session, _ in batch]
        hidden = [self._read(session, n, extras) for (session, _), n in zip(batch, prefills, strict=True)]
        outs = self._run([(s, 0 if isinstance(tree, int) else tree) for s, tree in batch], want, extras)
        for out, n, start, states in zip(outs, prefills, starts, hidden, strict=True):
            out.add_prefill(n, start, states)
        return outs

    def _stops(self, part: tuple[LlamaSession, DraftTree | int], prefill: int) -> bool:
        """Return whether a state within the prompt is kept, or that after it, to which a draft may return."""
        session, tree = part
        drafts = isinstance(tree, DraftTree) and len(tree) > 0
        needs_checkpoint = self._cache.stateful and drafts and not session.slot.checkpoint
        return needs_checkpoint or session.next_stop(prefill) is not None

    def _fits(self, n_prefill: int, batch: LlamaBatch, extras: JoinedExtras) -> bool:
        """Return whether one pass has room for so many prefill tokens and the trees."""
        if not extras.all_outputs:
            return n_prefill <= (MAX_FUSED_PREFILL if self._cache.stateful else CHUNK)
        return n_prefill + sum(1 + len(tree) for _, tree in batch if not isinstance(tree, int)) <= MAX_ROWS

    def _run(self, batch: LlamaBatch, want: RequiredOutputs, extras: JoinedExtras) -> list[LlamaForward]:
        """Compute all rows in one pass."""
        parts, hidden = self._compute(batch, extras)
        logits, now = self.batch.logits(self.context), self._passes
        return [
            LlamaForward(
                lambda: self._passes == now,
                logits[part.outputs],
                part.first,
                part.rows.stop - part.rows.start,
                want,
                part.features(hidden),
            )
            for part in parts
        ]

    def _compute(
        self, batch: LlamaBatch, extras: JoinedExtras, *, prefill: bool = False
    ) -> tuple[list[_Part], Hidden | None]:
        """Fill and decode the batch; return the hidden states of all rows."""
        self._passes += 1
        self.batch.clear(all_outputs=extras.all_outputs)
        try:
            parts = [self._plan(session, tree) for session, tree in batch]
            hidden = self._decode(extras, prefill=prefill) if len(self.batch) else None
            for session, tree in batch:
                if isinstance(tree, int):
                    session.read(tree)
                else:
                    session.mark_computed()
        except BaseException:  # also Ctrl-C: drop the pass from the cache
            for session, _ in batch:
                session.rollback()
            raise
        return parts, hidden

    def _plan(self, session: LlamaSession, tree: DraftTree | int) -> _Part:
        """Add a session's rows to the batch."""
        row, start, first = len(self.batch), len(session.slot.cached), 0
        lead = tree if isinstance(tree, int) else session.pending_tokens
        if isinstance(tree, int):
            session.plan_prefill(tree, self.batch)
        else:
            first = session.plan(tree, self.batch)
        rows = slice(row, len(self.batch))
        end = self.batch.outputs
        return _Part(rows, slice(end - (rows.stop - row - lead), end), first, lead, start + first)

    def _read(self, session: LlamaSession, n: int, extras: JoinedExtras) -> list[Hidden]:
        """Prefill the next `n` tokens in as few passes as possible; return the hidden states of each pass."""
        slot, is_whole = session.slot, not session.slot.cached
        limit = MAX_ROWS if extras.all_outputs else CHUNK
        end, hidden = len(slot.cached) + n, list[Hidden]()
        while len(slot.cached) < end:
            left = end - len(slot.cached)
            part = min(limit, session.next_stop(left) or left)
            _, shown = self._compute([(session, part)], extras, prefill=True)
            hidden += [] if shown is None else [shown]
        if n:
            slot.prompt_length = end if is_whole else 0
        return hidden

    def _decode(self, extras: JoinedExtras, *, prefill: bool) -> Hidden | None:
        """Decode the batch; return the hidden states of all rows [rows, layers, width]."""
        if not extras.joined:
            self._decode_batch()
            return None
        shown = extras.run(self._decode_batch, self.batch, prefill=prefill)
        return np.concatenate(shown, axis=1) if len(shown) > 1 else next(iter(shown), None)

    def _decode_batch(self) -> None:
        self.batch.decode(self.context)
