"""A ForwardOutput for backends that have logits; faster backends override its methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from paceline.speculative import sampling
from paceline.speculative.interfaces import NO_FEATURES, Features
from paceline.speculative.sampling import Logits, Mask, Sampling, TokenDistribution


def row_index(row: int, rows: range, is_last: bool = True) -> int:
    """Return the index of `row` among the computed rows.
    is_last: false once the target has run another forward."""
    assert is_last, "this output was overwritten by the target's next forward"
    assert row in rows, f"row {row} is not among those this forward computed"
    return row - rows.start


class LogitsOutput(ABC):
    """A ForwardOutput computed from logits. computed, features: see ForwardOutput."""

    computed = 1
    features = NO_FEATURES

    def __init__(self, computed: int = 1, features: Features = NO_FEATURES) -> None:
        self.computed, self.features = computed, features

    @abstractmethod
    def logits(self, row: int) -> Logits: ...

    def argmax(self, row: int) -> int:
        return sampling.argmax(self.logits(row))

    def target_distribution(
        self, row: int, settings: Sampling, history: Sequence[int], mask: Mask | None = None
    ) -> TokenDistribution:
        return sampling.target_distribution(self.logits(row), settings, history, mask)
