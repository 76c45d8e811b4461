"""Checks at load time of whether a row's logits depend on the other rows of its pass."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget


def rows_are_equal(target: LlamaTarget) -> bool:
    """Return whether Paceline's kernels compute all operations over several rows, so that rows are equal."""
    elsewhere = target.gpu_layers > 0 or target.flash_attention is False
    if not target.kernels or elsewhere or target.caps.rollback != "free":
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
