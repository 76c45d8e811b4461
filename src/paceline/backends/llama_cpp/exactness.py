"""Checks at load time: do rows depend on other rows of their pass, and do rejected drafts leave a trace in a
model's state? Passes of one shape, for rows that do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.cache import SequenceSlot
from paceline.backends.llama_cpp.extras import PassExtra
from paceline.backends.logit_drift import logits_from_empty_cache, max_logit_difference, teacher_forced_logits
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Caps, RequiredOutputs
from paceline.speculative.tree import EMPTY, chain

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget

TRIAL_TOKENS = 12
MAX_TRACE, ROUNDING = 0.1, 1e-6  # of the change of logits by rejected tokens; of logits


def rows_are_equal(target: LlamaTarget) -> bool:
    """Return whether Paceline's kernels compute all operations over several rows, so that rows are equal."""
    given = target.settings
    elsewhere = given["gpu_layers"] > 0 or given["flash_attention"] is False
    if not given["kernels"] or elsewhere or target.caps.rollback == "none":
        return False
    return not kernels.foreign_operations(lambda: _probe_forward(target))


def _probe_forward(target: LlamaTarget) -> None:
    """Run a short pass, and drop it from the cache."""
    with closing(target.open()) as session:
        session.extend([0] * min(2, target.caps.n_ctx))
        target.forward([(session, EMPTY)], RequiredOutputs())
    target.forget()


class FilledPasses(PassExtra):
    """Fills each pass with outputs up to `rows`, by a sequence that is dropped at once. Plain and speculative
    decoding then run the same kernels and give the same bits."""

    one_shape = True

    def __init__(self, rows: int) -> None:
        self.cells = self._rows = rows
        self._filler = SequenceSlot(-1)

    def limit(self, caps: Caps) -> Caps:
        return replace(
            caps,
            max_branches=1,  # cells of branches are not in the order of plain decoding
            max_batch_tokens=self._rows,
            max_prefill_tokens=caps.n_ctx,
            exact=caps.max_sessions == 1,  # passes over several sessions vary in shape
            sparse_prompts=False,
        )

    def attach(self, target: LlamaTarget) -> None:
        self._cache = target.cache

    def joins(self, layers: Sequence[int]) -> bool:
        return True

    @contextmanager
    def around_pass(self, batch: Batch, layers: Sequence[int], *, prefill: bool) -> Iterator[None]:
        missing = 0 if prefill else self._rows - batch.outputs
        if missing <= 0:
            yield
            return
        try:
            filler = self._cache.take_branch(self._filler)
            for position in range(missing):
                batch.add(0, position, [filler], True)
            yield
        finally:
            self._cache.free_branches(self._filler)


def require_exact(target: LlamaTarget) -> None:
    """Raise ModelError if a row of passes of one shape depends on its place or on the other rows."""
    length = max(2, min(64, target.caps.n_ctx))
    text = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
    start = max(1, length // 4)
    n = target.caps.max_batch_tokens

    def rows(each: int) -> NDArray[Any]:
        target.forget()  # use the same cells each time
        return np.asarray(teacher_forced_logits(target, text, start, each))

    experts = binding.metadata(target.model.pointer, f"{target.model.architecture}.expert_count")
    is_dense = experts in (None, "0")
    if not (is_dense and all(np.array_equal(rows(n), rows(fewer)) for fewer in (1, n // 2 + 1))):
        raise ModelError(
            f"{target.path}: this model's logits depend on the other rows in the batch (as with mixtures of "
            "experts), so exact greedy output is not available; leave out exact_greedy (--exact-greedy)"
        )


def drops_rejected_drafts(target: LlamaTarget) -> bool:
    """Return whether the logits after a rejected draft are those of a text without it.
    Rounding may differ, by far less than the rejected tokens would change the logits."""
    if target.caps.n_ctx < TRIAL_TOKENS:
        return False
    text = np.random.default_rng(0).integers(target.vocab.size, size=TRIAL_TOKENS).tolist()
    begin, accepted, rejected, last = text[:-4], text[-4:-3], text[-3:-1], text[-1:]
    target.forget()
    with closing(target.open()) as session:
        session.extend(begin)
        target.forward([(session, session.pending_tokens)], RequiredOutputs())  # for a checkpoint after it
        target.forward([(session, chain([*accepted, *rejected], "trial"))], RequiredOutputs())
        session.commit([0], *last)
        out = target.forward([(session, EMPTY)], RequiredOutputs())[0]
        after = out.logits(0).astype(np.float64)[None]
    without = logits_from_empty_cache(target, [*begin, *accepted, *last])
    trace = max_logit_difference(without, logits_from_empty_cache(target, text))
    target.forget()
    return bool(max_logit_difference(without, after) <= max(MAX_TRACE * trace, ROUNDING))
