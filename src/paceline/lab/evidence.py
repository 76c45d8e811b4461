"""What is known of a pair of models, this machine and a run of theirs, that a diagnosis can be made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.theory import acceptance

FEW_DRAFTED = 20  # tokens that say too little of an acceptance


@dataclass(frozen=True)
class Evidence:
    """What was read and measured; what is None, empty or 0 is not known, and no cause is made of it.

    threads: that decode; physical, logical: cores that may be used; quota: processors' worth of time.
    flash: whether flash attention is on, or may be, could be left out, and was
    not found to be the faster. gpus: how many there are that could gain; offload: whether the engine can use
    them; target_layers, draft_layers: how many are asked to be on a GPU.
    drafted_for: whether there is a draft model.
    memory: a Facts' word. experts, experts_used: of the target.
    size: bytes of both models; available, usable: of memory, before they were loaded, and at most.
    curve: seconds of the target's pass by rows; deeper: of one over a single row by context depth.
    draft_token: seconds of a draft's token. doubt: why the times that were measured tell nothing.
    steps, drafted, accepted, rejected, times: of a drafted run (core/record.py). seconds: it took.
    others: processors that other programs kept busy meanwhile. throttled: seconds of it that the quota took.
    swapped: bytes that came back from swap, of all programs. faults: pages that had to be read from disk."""

    threads: int = 0
    physical: int = 0
    logical: int = 0
    quota: float | None = None
    flash: bool = False
    gpus: int = 0
    offload: bool | None = None
    target_layers: int = 0
    draft_layers: int = 0
    drafted_for: bool = False
    memory: str = ""
    experts: int = 0
    experts_used: int = 0
    size: int = 0
    available: int = 0
    usable: int = 0
    curve: Mapping[int, float] | None = None
    deeper: Mapping[int, float] | None = None
    draft_token: float | None = None
    doubt: str = ""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    times: Mapping[str, float] | None = None
    seconds: float = 0.0
    others: float | None = None
    throttled: float | None = None
    swapped: int = 0
    faults: int = 0

    @property
    def acceptance(self) -> float | None:
        """The chance that a drafted token is kept; None where too few were."""
        return acceptance(self.accepted, self.rejected) if self.drafted >= FEW_DRAFTED else None

    @property
    def length(self) -> int:
        """Of a usual draft, in tokens."""
        return max(1, round(self.drafted / self.steps)) if self.steps else 0

    def relative(self, rows: int) -> float | None:
        """What a pass costs over one of a single row; of rows that were not measured what the next more
        do."""
        curve = self.curve or {}
        known = [n for n in sorted(curve) if n >= rows]
        return curve[known[0]] / curve[1] if known and 1 in curve else None

    @property
    def draft_cost(self) -> float | None:
        """Of a draft's token, over a pass of the target over one row."""
        if self.draft_token is None or not self.curve or 1 not in self.curve:
            return None
        return self.draft_token / self.curve[1]
