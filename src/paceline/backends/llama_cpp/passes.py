"""Passes of llama.cpp over several sessions, filled up to one shape if exact_rows is set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.batch import Batch, LlamaForward
from paceline.backends.llama_cpp.cache import LlamaKvCache, SequenceSlot
from paceline.backends.llama_cpp.hidden_states import Hidden, HiddenStateCapture
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.speculative.errors import ContractError, ModelError
from paceline.speculative.interfaces import NO_FEATURES, Features, RequiredOutputs
from paceline.speculative.request import MAX_FUSED_PREFILL
from paceline.speculative.tree import DraftTree

MAX_ROWS = binding.UBATCH  # a prompt with outputs is divided like one without, for equal bits
CHUNK = 2048  # prefill tokens in one pass
N_BATCH = CHUNK + MAX_ROWS

_OUT_OF_CELLS = 1  # llama_decode's code for "no KV slot"


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
    """The passes over the sessions of a cache. exact_rows: see LlamaTarget."""

    def __init__(
        self, path: Path, cache: LlamaKvCache, n_vocab: int, n_layers: int, *, exact_rows: int, kernels: bool
    ) -> None:
        self._path, self._cache, self._exact_rows, self._kernels = path, cache, exact_rows, kernels
        self._n_layers = n_layers
        self.batch = Batch(N_BATCH, MAX_ROWS, n_vocab)
        self.context: Any = None
        self.capture: HiddenStateCapture | None = None  # of the context
        self._filler = SequenceSlot(-1)  # the owner of filler rows
        self._passes = 0  # to notice reads of an outdated output

    def forward(
        self,
        batch: Sequence[tuple[LlamaSession, DraftTree | int]],
        prefills: Sequence[int],
        want: RequiredOutputs,
    ) -> list[LlamaForward]:
        """Compute a tree, or prefill so many tokens, for each session.
        prefills: the tokens to prefill of each session. They have their own passes if they do not fit, or
        would change the shape of a pass."""
        fits = self._fits(sum(prefills), (tree for _, tree in batch), want)
        if fits and not (any(prefills) and (self._exact_rows or any(map(self._needs_checkpoint, batch)))):
            return self._run(batch, want)
        starts = [len(session.slot.cached) for session, _ in batch]
        hidden = [self._read(session, n, want) for (session, _), n in zip(batch, prefills, strict=True)]
        outs = self._run([(s, 0 if isinstance(tree, int) else tree) for s, tree in batch], want)
        for out, n, start, states in zip(outs, prefills, starts, hidden, strict=True):
            out.add_prefill(n, start, states)
        return outs

    def _needs_checkpoint(self, part: tuple[LlamaSession, DraftTree | int]) -> bool:
        """Return whether a prompt should be in the checkpoint that a draft may return to."""
        session, tree = part
        drafts = isinstance(tree, DraftTree) and len(tree) > 0
        return self._cache.stateful and drafts and not session.slot.checkpoint

    def _fits(self, n_prefill: int, trees: Iterable[DraftTree | int], want: RequiredOutputs) -> bool:
        """Return whether one pass has room for so many prefill tokens beside these trees."""
        if not self._wants_final_norm(want):
            return n_prefill <= (MAX_FUSED_PREFILL if self._cache.stateful else CHUNK)
        return n_prefill + sum(1 + len(tree) for tree in trees if not isinstance(tree, int)) <= MAX_ROWS

    def _run(
        self, batch: Sequence[tuple[LlamaSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[LlamaForward]:
        """Compute all rows in one pass."""
        self._start_pass(want)
        parts: list[_Part] = []
        try:
            for session, tree in batch:
                parts.append(self._plan(session, tree))
            hidden = self._decode_filled(want) if len(self.batch) else None
            for session, tree in batch:
                if isinstance(tree, int):
                    session.read(tree)
                else:
                    session.mark_computed()
        except BaseException:  # also Ctrl-C: drop the pass from the cache
            for session, _ in batch:
                session.rollback()
            raise
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

    def _start_pass(self, want: RequiredOutputs) -> None:
        self._passes += 1
        self.batch.clear(all_outputs=self._wants_final_norm(want))

    def _wants_final_norm(self, want: RequiredOutputs) -> bool:
        return bool(want.layers) and want.layers[-1] == self._n_layers

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

    def _read(self, session: LlamaSession, n: int, want: RequiredOutputs) -> list[Hidden]:
        """Prefill the next `n` tokens in as few passes as possible; return the hidden states of each pass."""
        slot, is_whole = session.slot, not session.slot.cached
        most = MAX_ROWS if self._wants_final_norm(want) else CHUNK
        end, hidden = len(slot.cached) + n, list[Hidden]()
        while len(slot.cached) < end:
            self._start_pass(want)
            part = min(most, end - len(slot.cached))
            try:
                session.plan_prefill(part, self.batch)
                shown = self._decode(want)
            except BaseException:
                session.rollback()
                raise
            session.read(part)
            hidden += [] if shown is None else [shown]
        if n:
            slot.prompt_length = end if is_whole else 0
        return hidden

    def _decode_filled(self, want: RequiredOutputs) -> Hidden | None:
        """Decode the batch, filled up to `exact_rows` by a sequence that is dropped at once."""
        missing = self._exact_rows - self.batch.outputs
        if missing <= 0:
            return self._decode(want)
        try:
            filler = self._cache.take_branch(self._filler)
            for pos in range(missing):
                self.batch.add(0, pos, [filler], True)
            return self._decode(want)
        finally:
            self._cache.free_branches(self._filler)

    def _decode(self, want: RequiredOutputs) -> Hidden | None:
        """Decode the batch; return the hidden states of all rows."""
        if not want.layers:
            self._decode_batch()
            return None
        if self.capture is None:
            raise ContractError("the context was made without the callback that copies hidden states")
        with self.capture.rows(want.layers, len(self.batch)) as hidden:
            self._decode_batch()
        return hidden

    def _decode_batch(self) -> None:
        own_kernels.set_enabled(self._kernels)
        code = self.batch.decode(self.context)
        binding.helpers().on_compute()
        if code == _OUT_OF_CELLS:
            raise ModelError(f"{self._path}: the KV cache is full; ask for a larger context (n_ctx, -c)")
        if code != 0:
            raise ModelError(f"{self._path}: llama_decode failed with code {code}")
