"""The value of calling a drafter, learned from the gains of its calls."""

from __future__ import annotations

from dataclasses import dataclass, field

CONFIDENCE_LEVELS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # edges between kinds of steps
EMA_WEIGHT = 1 / 8  # weight of the last call in the expected time of a call
# Outcomes behind an expected gain: at first an optimistic prior, so that drafters are tried; later the last.
PRIOR_OUTCOMES, MAX_OUTCOMES = 8, 64
TRIAL_CALLS = 4  # calls before a drafter is judged, which measure the time of a call
MAX_PROBING_SHARE = 0.01  # of all time, for calls of drafters that did not pay


def confidence_level(reach_probability: float) -> int:
    """Return the kind of step, by the likeliest guess before the drafter is called."""
    return sum(reach_probability > edge for edge in CONFIDENCE_LEVELS)


@dataclass
class DrafterValue:
    """The expected gain and time of calling one drafter.
    tokens: gain of a call in tokens, by kind of step; outcomes: the number of outcomes behind each.
    seconds: time of a call; level: time per computed level of depth.
    credit: seconds saved up for a trial call of a drafter that does not seem to pay."""

    tokens: list[float] = field(default_factory=lambda: [1.0] * (len(CONFIDENCE_LEVELS) + 1))
    outcomes: list[int] = field(default_factory=lambda: [PRIOR_OUTCOMES] * (len(CONFIDENCE_LEVELS) + 1))
    seconds: float = 0.0
    level: float = 0.0
    calls: int = 0
    credit: float = 0.0

    def add_credit(self, seconds: float) -> None:
        """Save up a share of the elapsed seconds."""
        self.credit = min(self.credit + MAX_PROBING_SHARE * seconds, self.seconds)

    def should_call(self, kind: int, rate: float) -> bool:
        """Return whether a call should pay, or is due as a trial, which this call counts as.
        rate: tokens a second has to bring."""
        if self._pays(kind, rate):
            return True
        if self.credit < self.seconds:
            return False
        self.credit = 0.0
        self.outcomes[kind] = min(self.outcomes[kind], PRIOR_OUTCOMES)  # so that a change shows soon
        return True

    def is_due(self, kind: int, rate: float) -> bool:
        """Return what `should_call` would."""
        return self._pays(kind, rate) or self.credit >= self.seconds

    def _pays(self, kind: int, rate: float) -> bool:
        return self.calls < TRIAL_CALLS or self.tokens[kind] > rate * self.seconds

    def update(self, kind: int, tokens: float, seconds: float, levels: int, *, reads: bool = False) -> float:
        """Learn from a call and return the seconds that count.
        reads: the call began with a long prefill, so that its time is not typical."""
        if not reads:
            if self.calls:
                seconds = min(seconds, 4 * self.seconds)  # limits the effect of a hiccup
            share = max(EMA_WEIGHT, 1 / (1 + self.calls))
            self.seconds += share * (seconds - self.seconds)
            self.level += share * (seconds / max(1, levels) - self.level)
            self.calls += 1
        # Close to a plain mean: most calls gain nothing, and a run of those must not exclude the drafter.
        self.outcomes[kind] += self.outcomes[kind] < MAX_OUTCOMES
        self.tokens[kind] += (tokens - self.tokens[kind]) / self.outcomes[kind]
        return seconds
