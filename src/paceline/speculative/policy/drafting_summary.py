"""What a policy has to say for itself: how often it drafted, why not more often, how far its word is good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.speculative.policy.calibration import Calibration
from paceline.speculative.policy.cost_model import PassCosts
from paceline.speculative.policy.speedup_formulas import break_even

MIN_OUTCOMES = 20  # outcomes that a measured acceptance rests on, at the least
MAX_BATCH_TOKENS = 16  # rows that a reason looks at
USUAL_DRAFTING_SHARE = 0.5  # of the steps drafted for: more needs no excuse
MAX_ACCEPTANCE = 0.95  # the acceptance that hardly any draft has


@dataclass(frozen=True)
class BreakEvenReason:
    """Why a draft does not pay.

    rows, ratio: what verifying so many rows costs over a single one.
    break_even: the acceptance at which the draft neither gains nor loses; None: no acceptance is enough.
    measured: how often, where no guess was verified, the likeliest would have been right; None: unknown."""

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


@dataclass(frozen=True)
class DraftingSummary:
    """steps: of all requests so far.
    silent: steps at which no drafter had a guess.
    declined: steps at which no guess was worth making or verifying; among these
    refused: those at which a drafter was not called, since its calls take longer than they save
    braked: those at which drafts had lost too much before.
    calibration: of what each drafter's guesses, and whole drafts, were believed to be.
    reason: the least that drafting would have to be right."""

    steps: int = 0
    silent: int = 0
    declined: int = 0
    reason: BreakEvenReason | None = None
    calibration: Mapping[str, Calibration] = field(default_factory=dict)
    refused: int = 0
    braked: int = 0

    @property
    def why(self) -> str:
        """One line where most steps were not drafted for; empty otherwise."""
        off = self.silent + self.declined
        if not self.steps or off < USUAL_DRAFTING_SHARE * self.steps:
            return ""
        message = f"drafting was off at {off / self.steps:.0%} of the steps"
        if self.silent > self.declined:
            return f"{message}: no drafter had a guess at {self.silent / self.steps:.0%}"
        if max(self.braked, self.refused) < USUAL_DRAFTING_SHARE * self.declined:
            return f"{message}: {self.reason}"
        if self.braked >= self.refused:
            return f"{message}: drafting had taken longer than it saved, and waits until that is made good"
        return f"{message}: calling the drafter takes longer than its guesses save"

    def as_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "silent": self.silent,
            "declined": self.declined,
            "refused": self.refused,
            "braked": self.braked,
            "why": self.why,
            "reason": None if self.reason is None else asdict(self.reason),
            "calibration": {name: value._asdict() for name, value in self.calibration.items()},
        }


@dataclass
class DraftingCounts:
    """Counts for a DraftingSummary. left_out: steps at which there were guesses and none was verified;
    was_right: those of them at which the likeliest one would have been accepted."""

    steps: int = 0
    silent: int = 0
    declined: int = 0
    refused: int = 0
    braked: int = 0
    left_out: int = 0
    was_right: int = 0

    def summary(
        self, costs: PassCosts, depth: int, calibration: Mapping[str, Calibration]
    ) -> DraftingSummary:
        measured = self.was_right / self.left_out if self.left_out >= MIN_OUTCOMES else None
        why = break_even_reason(costs.curve(MAX_BATCH_TOKENS, depth), measured)
        return DraftingSummary(
            self.steps, self.silent, self.declined, why, calibration, self.refused, self.braked
        )


def break_even_reason(curve: Sequence[float], measured: float | None) -> BreakEvenReason:
    """Return the reason by the rows that ask for the least acceptance. curve: seconds by rows, from 0."""
    ratios = {rows: curve[rows] / curve[1] for rows in range(2, len(curve))}
    known = {rows: a for rows, v in ratios.items() if (a := break_even(v, rows - 1)) is not None}
    rows = min(known, key=known.__getitem__) if known else 2
    return BreakEvenReason(rows, ratios[rows], known.get(rows), measured)
