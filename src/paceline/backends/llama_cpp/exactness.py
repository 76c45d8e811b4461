"""Checks at load time: do a row's logits depend on the other rows of its pass, and does a rejected draft
leave a trace in a model's state?"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.logit_drift import logits_from_empty_cache, max_logit_difference, teacher_forced_logits
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget

TRIAL_TOKENS = 12
MAX_TRACE, ROUNDING = 0.1, 1e-6  # of the change of logits by rejected tokens; of logits


def rows_are_equal(target: LlamaTarget) -> bool:
    """Return whether Paceline's kernels compute all operations over several rows, so that rows are equal."""
    elsewhere = target.gpu_layers > 0 or target.flash_attention is False
    if not target.kernels or elsewhere or target.caps.rollback == "none":
        return False
    return not kernels.foreign_operations(lambda: _probe_forward(target))


def _probe_forward(target: LlamaTarget) -> None:
    """Run a short pass, and drop it from the cache."""
    with closing(target.open()) as session:
        session.extend([0] * min(2, target.caps.n_ctx))
        target.forward([(session, EMPTY)], RequiredOutputs())
    target.forget()


def require_exact(target: LlamaTarget) -> None:
    """Raise ModelError if a row of passes of one shape depends on its place or on the other rows."""
    arch = binding.metadata(target._model, "general.architecture")
    length = max(2, min(64, target.caps.n_ctx))
    text = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
    start = max(1, length // 4)
    n = target.exact_rows

    def rows(each: int) -> NDArray[Any]:
        target.forget()  # use the same cells each time
        return np.asarray(teacher_forced_logits(target, text, start, each))

    same = binding.metadata(target._model, f"{arch}.expert_count") in (None, "0") and all(
        np.array_equal(rows(n), rows(fewer)) for fewer in (1, n // 2 + 1)
    )
    if not same:
        raise ModelError(
            f"{target.path}: what a row says depends on the rows beside it (as in a mixture of experts), "
            "so exact greedy output cannot be had for this model; leave out exact_greedy (--exact-greedy)"
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
        target.forward([(session, session.pending_tokens)], RequiredOutputs())  # for a checkpoint behind it
        target.forward([(session, chain([*accepted, *rejected], "trial"))], RequiredOutputs())
        session.commit([0], *last)
        out = target.forward([(session, EMPTY)], RequiredOutputs())[0]
        after = out.logits(0).astype(np.float64)[None]
    without = logits_from_empty_cache(target, [*begin, *accepted, *last])
    trace = max_logit_difference(without, logits_from_empty_cache(target, text))
    target.forget()
    return bool(max_logit_difference(without, after) <= max(MAX_TRACE * trace, ROUNDING))
