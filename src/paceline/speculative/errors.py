"""The one exception tree. Every message says what is wrong, where, and what to do next.

PacelineError            exit 1
├── UsageError           exit 2   an argument that cannot be used as given
│   ├── ContextError     exit 2   a prompt that is longer than the context
│   ├── VocabError       exit 2   draft and target do not share a vocabulary
│   └── BusyError        exit 2   all sessions of a model are in use
├── ModelError           exit 1   a model file that cannot be loaded or is not a causal language model
│   └── LogitsError      exit 1   a model that answers with logits that are not numbers
├── MissingExtraError    exit 1   an optional dependency that is not installed
├── KernelError          exit 1   kernels of our own that cannot be compiled or loaded here
├── PeerError            exit 1   another program that was to be measured cannot be started, reached or read
├── HistoryError         exit 1   the file that benches are kept in cannot be read or written
├── RememberedError      exit 1   the file that past outputs are kept in cannot be read or written
├── ClosingError         exit 1   an engine that takes no more requests, or whose model has failed
├── TooSlowError         exit 1   a request that took longer than its timeout
├── BatchError           exit 1   some prompts of a batch failed; it carries the answers to the others
├── ContractError        exit 1   a drafter or engine broke the contract in interfaces.py: a bug, never the
user's
└── LosslessError        exit 3   drafted output differs from plain output beyond batch noise
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class PacelineError(Exception):
    exit_code = 1


class UsageError(PacelineError):
    exit_code = 2


class ContextError(UsageError):
    pass


class VocabError(UsageError):
    pass


class BusyError(UsageError):
    pass


class ModelError(PacelineError):
    pass


class LogitsError(ModelError):
    pass


class MissingExtraError(PacelineError):
    pass


class KernelError(PacelineError):
    pass


class PeerError(PacelineError):
    pass


class HistoryError(PacelineError):
    pass


class RememberedError(PacelineError):
    pass


class ClosingError(PacelineError):
    pass


class TooSlowError(PacelineError):
    pass


class BatchError(PacelineError):
    """results: one a prompt, in their order; None for those that failed. errors: by a prompt's index, what
    went wrong with it."""

    def __init__(self, results: Sequence[Any], errors: Mapping[int, Exception]) -> None:
        super().__init__(results, errors)
        self.results, self.errors = results, errors

    def __str__(self) -> str:
        first, *others = sorted(self.errors)
        more = f" (and {len(others)} more failed, see .errors)" if others else ""
        done = len(self.results) - len(self.errors)
        return f"prompt [{first}]: {self.errors[first]}{more}; .results has the {done} other answers"


class ContractError(PacelineError):
    pass


class LosslessError(PacelineError):
    exit_code = 3
