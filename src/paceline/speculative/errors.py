"""The exception tree. Every message says what is wrong, where, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class PacelineError(Exception):
    """The base of all errors. exit_code: of the command line."""

    exit_code = 1


class UsageError(PacelineError):
    """An argument that cannot be used as given."""

    exit_code = 2


class ContextError(UsageError):
    """A prompt that is longer than the context. n_prompt, n_ctx: tokens, if they were counted."""

    def __init__(self, message: str, n_prompt: int = 0, n_ctx: int = 0) -> None:
        super().__init__(message)
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


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


class BaselineError(PacelineError):
    """Another program that was to be measured, and that cannot be started, reached or read."""


class RememberedError(PacelineError):
    """A file of past outputs that cannot be read or written."""


class ClosingError(PacelineError):
    """An engine that takes no more requests, or whose model has failed."""


class TooSlowError(PacelineError):
    """A request that took longer than its timeout."""


class BatchError(PacelineError):
    """Several prompts were generated for, and some failed.
    results: one per prompt, in order; None for a failed one.
    errors: the failures, by prompt index."""

    def __init__(self, results: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        super().__init__(results, errors)
        self.results, self.errors = results, errors

    def __str__(self) -> str:
        first, *others = sorted(self.errors)
        more = f" (and {len(others)} more failed, see .errors)" if others else ""
        done = len(self.results) - len(self.errors)
        return f"prompt [{first}]: {self.errors[first]}{more}; .results has the {done} other answers"


class ContractError(PacelineError):
    """A drafter that breaks the contract in interfaces.py: always a bug, perhaps in an installed package."""


class NotLosslessError(PacelineError):
    """Drafted output that differs from plain output by more than batch noise."""

    exit_code = 3
