"""The one exception tree. Every message says what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class PacelineError(Exception):
    exit_code = 1


class UsageError(PacelineError):
    """An argument that cannot be used as given."""

    exit_code = 2


class ContextError(UsageError):
    """A prompt that is longer than the context."""


class VocabError(UsageError):
    """Draft and target do not share a vocabulary."""


class BusyError(UsageError):
    """All sessions of a model are in use."""


class ModelError(PacelineError):
    """A model file that cannot be loaded or is not a causal language model."""


class LogitsError(ModelError):
    """A model whose logits are not numbers."""


class MissingExtraError(PacelineError):
    """An optional dependency that is not installed."""


class KernelError(PacelineError):
    """Kernels that cannot be compiled or loaded here."""


class PeerError(PacelineError):
    """Another program that was to be measured cannot be started, reached or read."""


class HistoryError(PacelineError):
    """The file of past benches cannot be read or written."""


class RememberedError(PacelineError):
    """The file of past outputs cannot be read or written."""


class ClosingError(PacelineError):
    """An engine that takes no more requests, or whose model has failed."""


class TooSlowError(PacelineError):
    """A request that took longer than its timeout."""


class BatchError(PacelineError):
    """Some prompts of a batch failed.

    results: one a prompt, in their order; None for those that failed.
    errors: by a prompt's index."""

    def __init__(self, results: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        super().__init__(results, errors)
        self.results, self.errors = results, errors

    def __str__(self) -> str:
        first, *others = sorted(self.errors)
        more = f" (and {len(others)} more failed, see .errors)" if others else ""
        done = len(self.results) - len(self.errors)
        return f"prompt [{first}]: {self.errors[first]}{more}; .results has the {done} other answers"


class ContractError(PacelineError):
    """A drafter or engine broke the contract in interfaces.py: a bug, never the user's."""


class LosslessError(PacelineError):
    """Drafted output differs from plain output beyond batch noise."""

    exit_code = 3
