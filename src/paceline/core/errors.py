"""The one exception tree. Every message says what is wrong, where, and what to do next.

PacelineError            exit 1
├── UsageError           exit 2   an argument that cannot be used as given
│   ├── VocabError       exit 2   draft and target do not share a vocabulary
│   └── BusyError        exit 2   all sessions of a model are in use
├── ModelError           exit 1   a model file that cannot be loaded or is not a causal language model
│   └── LogitsError      exit 1   a model that answers with logits that are not numbers
├── MissingExtraError    exit 1   an optional dependency that is not installed
├── KernelError          exit 1   kernels of our own that cannot be compiled or loaded here
├── PeerError            exit 1   another program that was to be measured cannot be started, reached or read
├── HistoryError         exit 1   the file that benches are kept in cannot be read or written
├── RememberedError      exit 1   the file that past outputs are kept in cannot be read or written
├── ContractError        exit 1   a drafter or engine broke the contract in ports.py: a bug, never the user's
└── LosslessError        exit 3   drafted output differs from plain output beyond batch noise
"""

from __future__ import annotations


class PacelineError(Exception):
    exit_code = 1


class UsageError(PacelineError):
    exit_code = 2


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


class ContractError(PacelineError):
    pass


class LosslessError(PacelineError):
    exit_code = 3
