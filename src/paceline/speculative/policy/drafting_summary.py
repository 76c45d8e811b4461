"""Statistics of a policy: how often it drafted, and why not more often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.speedup_formulas import break_even

MIN_OUTCOMES = 20  # for a measured acceptance
MAX_SHOWN_ROWS = 16  # largest pass considered for a reason
USUAL_DRAFTING_SHARE = 0.5  # of the steps; no reason is given above it
MAX_ACCEPTANCE = 0.95  # hardly any draft reaches it


@dataclass(frozen=True)
class BreakEvenReason:
    """The reason why drafts do not pay.
    rows, ratio: the cost of verifying so many rows, relative to one row.
    break_even: the acceptance at which drafts neither gain nor lose; None if none suffices.
    measured: the acceptance the likeliest unverified guesses would have had; None if unknown."""

    rows: int
    ratio: float
    break_even: float | None
    measured: float | None

    @property
    def never(self) -> bool:
        return self.break_even is None or self.break_even > MAX_ACCEPTANCE

    def __str__(self) -> str:
        value = f"{self.rows} rows cost {self.ratio:.1f}x one here"
        if self.break_even is None:
            value += ", more than so many tokens decoded singly"
        else:
            value += f"; break-even acceptance {self.break_even:.2f}"
            if self.measured is not None:
                value += f", measured there {self.measured:.2f}"
        return f"{value} (paceline doctor -m MODEL --refresh measures that anew)" if self.never else value


@dataclass
class DraftingSummary:
    """Counts of the steps of all requests.
    silent: steps without a guess.
    declined: steps at which no guess was worth making or verifying.
    refused: declined steps at which a drafter was not called, as its calls cost more than they save.
    braked: declined steps at which earlier drafts had lost too much.
    reason: the least acceptance that would pay.
    left_out: steps with guesses of which none was verified.
    was_right: those among them whose likeliest guess would have been accepted."""

    steps: int = 0
    silent: int = 0
    declined: int = 0
    reason: BreakEvenReason | None = None
    refused: int = 0
    braked: int = 0
    left_out: int = 0
    was_right: int = 0

    def with_reason(self, costs: PassCosts, depth: int) -> DraftingSummary:
        """Return a copy with the reason by current costs."""
        measured = self.was_right / self.left_out if self.left_out >= MIN_OUTCOMES else None
        return replace(self, reason=break_even_reason(costs.curve(MAX_SHOWN_ROWS, depth), measured))

    @property
    def why(self) -> str:
        """One line of explanation if most steps were not drafted for, else ""."""
        off = self.silent + self.declined
        if not self.steps or off < USUAL_DRAFTING_SHARE * self.steps:
            return ""
        message = f"plain decoding at {off / self.steps:.0%} of the steps"
        if self.silent > self.declined:
            return f"{message}: no drafter had a guess at {self.silent / self.steps:.0%}"
        if max(self.braked, self.refused) < USUAL_DRAFTING_SHARE * self.declined:
            return f"{message}: {self.reason}"
        if self.braked >= self.refused:
            cause = "drafting" if off < self.steps else "looking for drafts"  # nothing was verified
            return f"{message}: {cause} has cost more time than it saved, and pauses to make up for it"
        return f"{message}: calling the drafter costs more time than its guesses save"

    def as_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "silent": self.silent,
            "declined": self.declined,
            "refused": self.refused,
            "braked": self.braked,
            "why": self.why,
            "reason": None if self.reason is None else asdict(self.reason),
        }


def break_even_reason(curve: Sequence[float], measured: float | None) -> BreakEvenReason:
    """Return the reason for the rows that need the least acceptance. curve: seconds by rows, from 0."""
    ratios = {rows: curve[rows] / curve[1] for rows in range(2, len(curve))}
    known = {rows: a for rows, v in ratios.items() if (a := break_even(v, rows - 1)) is not None}
    rows = min(known, key=known.__getitem__) if known else 2
    return BreakEvenReason(rows, ratios[rows], known.get(rows), measured)
