"""The gains and losses of drafting: by drafter, by request, and as a summary for people.

A loss limit bounds what a request can lose whatever the predictions: a share of its plain decoding time, one
pass, and a part of all savings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance import AcceptanceModel, Recent
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.speedup_formulas import break_even

CONFIDENCE_LEVELS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # edges between kinds of steps
CALL_TIME_WEIGHT = 1 / 8  # weight of the last call in the expected time of a call
# Outcomes that an expected gain is the mean of: at first an optimistic prior, so that drafters are tried.
PRIOR_OUTCOMES, MAX_OUTCOMES = 8, 64
AGED = 0.75  # of what another process has learned
TRIAL_CALLS = 4  # calls before a drafter is judged, which measure the time of a call
MAX_PROBING_SHARE = 0.01  # of all time, for calls of drafters that did not pay

# The loss limit of a request: a share of its plain time, plain passes, and a share of all savings so far.
MAX_LOSS_SHARE, FREE_PASSES, SAVINGS_AT_RISK = 0.02, 1.0, 0.1
MAX_REST = 32  # passes without a decision

MIN_OUTCOMES = 20  # for a measured acceptance
MAX_SHOWN_ROWS = 16  # largest pass considered for a reason
USUAL_DRAFTING_SHARE = 0.5  # of the steps; no reason is given above it
MAX_ACCEPTANCE = 0.95  # hardly any draft reaches it


def confidence_level(reach_probability: float) -> int:
    """Return the kind of step, by the likeliest guess before the drafter is called."""
    return sum([reach_probability > edge for edge in CONFIDENCE_LEVELS])


@dataclass(slots=True)
class DrafterValue:
    """The expected gain and time of calling one drafter.
    tokens: gain of a call in tokens, by confidence level; outcomes: the number of outcomes in each mean."""

    tokens: list[float] = field(default_factory=lambda: [1.0] * (len(CONFIDENCE_LEVELS) + 1))
    outcomes: list[int] = field(default_factory=lambda: [PRIOR_OUTCOMES] * (len(CONFIDENCE_LEVELS) + 1))
    seconds: float = 0.0  # time of a call
    level_seconds: float = 0.0  # time per computed level of depth
    calls: int = 0
    credit: float = 0.0  # seconds saved up for a trial call of a drafter that does not seem to pay

    @classmethod
    def of(cls, learned: Mapping[str, Any]) -> DrafterValue:
        """Return the value that another process has learned, nearer to the prior: a drafter that did not pay
        there is called again once it might. Raises ValueError, KeyError or TypeError."""
        tokens = [1.0 + AGED * (float(gain) - 1.0) for gain in learned["tokens"]]
        seconds, level_seconds = float(learned["seconds"]), float(learned["level_seconds"])
        known = [*tokens, seconds, level_seconds]
        if len(tokens) != len(CONFIDENCE_LEVELS) + 1 or not all(map(isfinite, known)) or min(known[-2:]) < 0:
            raise ValueError("a drafter's value")
        calls = max(0, min(TRIAL_CALLS, int(learned["calls"])))
        return cls(tokens, seconds=seconds, level_seconds=level_seconds, calls=calls)

    def add_credit(self, seconds: float) -> None:
        """Save up a share of the elapsed seconds."""
        self.credit = min(self.credit + MAX_PROBING_SHARE * seconds, self.seconds)

    def is_due(self, confidence: int, rate: float) -> bool:
        """Return whether a call should pay, or a trial can be afforded.
        confidence: see `confidence_level`. rate: tokens that a second has to bring."""
        return self._pays(confidence, rate) or self.credit >= self.seconds

    def begin_trial(self, confidence: int, rate: float) -> None:
        """Spend the credit, unless the call should pay. Trials weigh more, so that a change shows soon."""
        if not self._pays(confidence, rate):
            self.credit = 0.0
            self.outcomes[confidence] = min(self.outcomes[confidence], PRIOR_OUTCOMES)

    def _pays(self, confidence: int, rate: float) -> bool:
        return self.calls < TRIAL_CALLS or self.tokens[confidence] > rate * self.seconds

    def update(
        self, confidence: int, tokens: float, seconds: float, levels: int, has_prefill: bool = False
    ) -> float:
        """Learn from a call and return the seconds that count.
        has_prefill: the call began with a long prefill, so that its time is not typical."""
        if not has_prefill:
            if self.calls:
                seconds = min(seconds, 4 * self.seconds)  # limits the effect of a hiccup
            share = max(CALL_TIME_WEIGHT, 1 / (1 + self.calls))
            self.seconds += share * (seconds - self.seconds)
            self.level_seconds += share * (seconds / max(1, levels) - self.level_seconds)
            self.calls += 1
        # Close to a plain mean: most calls gain nothing, and a run of those must not exclude the drafter.
        self.outcomes[confidence] += self.outcomes[confidence] < MAX_OUTCOMES
        self.tokens[confidence] += (tokens - self.tokens[confidence]) / self.outcomes[confidence]
        return seconds


@dataclass(slots=True)
class DrafterLedger:
    """What is known of all drafters."""

    acceptance: AcceptanceModel
    clock: Callable[[], float]
    draft_costs: PassCosts | None = None  # pass costs of the draft model, if known
    values: dict[str, DrafterValue] = field(default_factory=dict)  # by drafter
    sampling: set[str] = field(default_factory=set)  # drafters whose drafts must be verified whole
    saved_seconds: float = 0.0  # by all drafts
    calls: dict[str, int] = field(default_factory=dict)  # requests of the current pass by drafter

    def credit(self, plain: float) -> float:
        """Return the seconds that a request may lose beyond its share. plain: its part of a pass."""
        return FREE_PASSES * plain + SAVINGS_AT_RISK * max(0.0, self.saved_seconds)


@dataclass(slots=True)
class DrafterCall:
    """The current call of a drafter."""

    drafter: str
    since: float  # time of the call
    gain: float = 0.0  # gain of the draft before the call, in tokens
    confidence: int = 0  # see `confidence_level`
    has_prefill: bool = False  # the call begins with a long prefill
    levels: int = 0  # levels of depth computed so far
    minus_reach: list[float] = field(default_factory=list)  # negated, of the drafted nodes, ascending


@dataclass(slots=True)
class LossLedger:
    """The gains and losses of one request."""

    drafters: DrafterLedger  # shared by all requests
    recent_acceptance: Recent = field(default_factory=dict)  # by drafter
    lost_seconds: float = 0.0  # time of drafts beyond what they saved
    plain_seconds: float = 0.0  # time of the prompt, and of plain decoding of the same tokens
    missed_seconds: float = 0.0  # time a drafter with pending tokens might have saved since its last call
    rest: int = 0  # further passes at which nothing is decided
    # In the current pass
    pending: int = 0  # tokens that the pass computes before the request's root
    is_limited: bool = False  # it began beyond the loss limit
    is_refused: bool = False  # a drafter was not called
    call: DrafterCall | None = None
    budget: Budget = NO_BUDGET  # the last one

    def begin_pass(self, credit: float, plain: float) -> bool:
        """Return whether to decide about drafts. plain: seconds of the request in a plain pass.
        Far beyond the loss limit nothing is decided until the loss is made good."""
        self.is_refused, self.call = False, None
        excess = self.excess - credit
        self.is_limited = excess > 0.0
        if excess > credit:
            self.rest = min(MAX_REST, int((excess - credit) / (MAX_LOSS_SHARE * plain)))
        return excess <= credit

    def rests(self) -> bool:
        """Return whether nothing is decided in the next pass."""
        resting = self.rest > 0
        self.rest -= resting
        return resting

    def end_call(self, now: float, gain: float) -> None:
        """Record the result of the current call, if any. gain: of the draft now."""
        call, drafters = self.call, self.drafters
        if call is not None:
            gained, seconds = gain - call.gain, (now - call.since) / drafters.calls[call.drafter]
            value = drafters.values[call.drafter]
            self.lose(value.update(call.confidence, gained, seconds, call.levels, call.has_prefill))
            self.call = None

    def lose(self, seconds: float) -> None:
        """Record the loss of a draft; negative if it saved time."""
        self.lost_seconds += seconds
        self.drafters.saved_seconds -= seconds

    @property
    def excess(self) -> float:
        """Seconds lost beyond the share of the plain time."""
        return self.lost_seconds - MAX_LOSS_SHARE * self.plain_seconds


@dataclass(frozen=True)
class BreakEvenReason:
    """The reason why drafts do not pay.
    rows, ratio: the cost of verifying so many rows, relative to one row."""

    rows: int
    ratio: float
    break_even: float | None  # the acceptance at which drafts neither gain nor lose; None if none suffices
    measured: float | None  # the acceptance the likeliest unverified guesses would have had; None if unknown

    @property
    def never(self) -> bool:
        return self.break_even is None or self.break_even > MAX_ACCEPTANCE

    def __str__(self) -> str:
        needed = ", more than so many tokens decoded singly"
        if self.break_even is not None:
            needed = f"; break-even acceptance {self.break_even:.2f}"
            needed += "" if self.measured is None else f", measured there {self.measured:.2f}"
        anew = " (paceline doctor -m MODEL --refresh measures that anew)" if self.never else ""
        return f"{self.rows} rows cost {self.ratio:.1f}x one here{needed}{anew}"


def break_even_reason(curve: Sequence[float], measured: float | None) -> BreakEvenReason:
    """Return the reason for the rows that need the least acceptance. curve: seconds by rows, from 0."""
    ratios = {rows: curve[rows] / curve[1] for rows in range(2, len(curve))}
    known = {rows: a for rows, v in ratios.items() if (a := break_even(v, rows - 1)) is not None}
    rows = min(known, key=known.__getitem__, default=2)
    return BreakEvenReason(rows, ratios[rows], known.get(rows), measured)


@dataclass
class DraftingSummary:
    """Counts of the steps of all requests."""

    steps: int = 0
    silent: int = 0  # steps without a guess
    declined: int = 0  # steps at which no guess was worth making or verifying
    reason: BreakEvenReason | None = None  # the least acceptance that would pay
    refused: int = 0  # declined steps at which a drafter's calls cost more than they save
    braked: int = 0  # declined steps at which earlier drafts had lost too much
    left_out: int = 0  # steps with guesses of which none was verified
    was_right: int = 0  # those among them whose likeliest guess would have been accepted
    reliability: list[tuple[float, float, float]] = field(default_factory=list)  # AcceptanceModel.reliability

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
        counts = asdict(self)
        del counts["left_out"], counts["was_right"]
        return counts | {"why": self.why}
