"""Passes of llama.cpp over several sessions, filled up to one shape if exact_rows is set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.batch import Batch, LlamaForward
from paceline.backends.llama_cpp.cache import LlamaKvCache, SequenceSlot
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import DraftTree

MAX_ROWS = 512
CHUNK = 2048  # prefill tokens in one pass
N_BATCH = CHUNK + MAX_ROWS

_OUT_OF_CELLS = 1  # llama_decode's code for "no KV slot"


class PassRunner:
    """The passes over the sessions of a cache. exact_rows: see LlamaTarget."""

    def __init__(
        self, path: Path, cache: LlamaKvCache, n_vocab: int, *, exact_rows: int, kernels: bool
    ) -> None:
        self._path, self._cache, self._exact_rows, self._kernels = path, cache, exact_rows, kernels
        self.batch = Batch(N_BATCH, MAX_ROWS, n_vocab)
        self.context: Any = None
        self._filler = SequenceSlot(-1)  # the owner of filler rows
        self._passes = 0  # to notice reads of an outdated output

    def run(
        self, batch: Sequence[tuple[LlamaSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[LlamaForward]:
        """Compute a tree, or prefill so many tokens, for each session. `computed` counts trees only."""
        self._passes += 1
        self.batch.clear()
        places: list[tuple[int, int, int]] = []  # start and end of outputs, and the first output's row
        try:
            for session, tree in batch:
                start, first = self.batch.outputs, 0
                if isinstance(tree, int):
                    session.plan_prefill(tree, self.batch)
                else:
                    first = session.plan(tree, self.batch)
                places.append((start, self.batch.outputs, first))
            if len(self.batch):
                self._decode_filled()
            for session, tree in batch:
                if isinstance(tree, int):
                    session.read(tree)
                else:
                    session.mark_computed()
        except BaseException:  # also Ctrl-C: drop the pass from the cache
            for session, _ in batch:
                session.rollback()
            raise
        rows, now = self.batch.logits(self.context), self._passes
        return [
            LlamaForward(lambda: self._passes == now, rows[start:end], first, want)
            for start, end, first in places
        ]

    def read(self, session: LlamaSession, n: int) -> None:
        """Prefill the next `n` tokens in as few passes as possible."""
        slot, is_whole = session.slot, not session.slot.cached
        end = len(slot.cached) + n
        while len(slot.cached) < end:
            self._passes += 1
            self.batch.clear()
            part = min(CHUNK, end - len(slot.cached))
            try:
                session.plan_prefill(part, self.batch)
                self._decode()
            except BaseException:
                session.rollback()
                raise
            session.read(part)
        if n:
            slot.prompt_length = end if is_whole else 0

    def _decode_filled(self) -> None:
        """Decode the batch, filled up to `exact_rows` by a sequence that is dropped at once."""
        missing = self._exact_rows - self.batch.outputs
        if missing <= 0:
            self._decode()
            return
        try:
            filler = self._cache.take_branch(self._filler)
            for pos in range(missing):
                self.batch.add(0, pos, [filler], True)
            self._decode()
        finally:
            self._cache.free_branches(self._filler)

    def _decode(self) -> None:
        own_kernels.set_enabled(self._kernels)
        code = self.batch.decode(self.context)
        binding.helpers().on_compute()
        if code == _OUT_OF_CELLS:
            raise ModelError(f"{self._path}: the KV cache is full; ask for a larger context (n_ctx, -c)")
        if code != 0:
            raise ModelError(f"{self._path}: llama_decode failed with code {code}")
