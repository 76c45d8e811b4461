"""Whether it pays to call a drafter, learned from what calling it has gained."""

from __future__ import annotations

from dataclasses import dataclass, field

CONFIDENCE_LEVELS = (
    0.3,
    0.5,
    0.7,
    0.8,
    0.9,
    0.95,
)  # how sure the draft was before: steps are told apart by it
EMA_WEIGHT = 1 / 8  # the weight of the last call in how long the next one is expected to take
# An expected gain rests on so many outcomes: at first on a token that was never gained, so that a drafter is
# tried before it is judged; later on the last ones.
MIN_RETRY_STEPS, MAX_RETRY_STEPS = 8, 64
TRIAL_CALLS = 4  # so often a drafter is called before it is judged: the first calls tell how long one takes
MAX_PROBING_SHARE = 0.01  # of all time goes, at most, into calling a drafter that has not paid


def confidence_level(reach_probability: float) -> int:
    """The kind of step, by the reach probability of the likeliest guess before the drafter is called."""
    return sum(reach_probability > edge for edge in CONFIDENCE_LEVELS)


@dataclass
class DrafterValue:
    """One drafter's. tokens: that a call adds to what a step is worth, by the kind of step; outcomes: how
    many each rests on. seconds: of a call; level: of each level of depth that it computes. credit: seconds
    that were saved up for a call that is not expected to pay, which shows whether that has changed."""

    tokens: list[float] = field(default_factory=lambda: [1.0] * (len(CONFIDENCE_LEVELS) + 1))
    outcomes: list[int] = field(default_factory=lambda: [MIN_RETRY_STEPS] * (len(CONFIDENCE_LEVELS) + 1))
    seconds: float = 0.0
    level: float = 0.0
    calls: int = 0
    credit: float = 0.0

    def add_credit(self, seconds: float) -> None:
        """So much time has gone by."""
        self.credit = min(self.credit + MAX_PROBING_SHARE * seconds, self.seconds)

    def should_call(self, kind: int, rate: float) -> bool:
        """rate: tokens that a second has to bring."""
        if self.calls < TRIAL_CALLS or self.tokens[kind] > rate * self.seconds:
            return True
        if self.credit < self.seconds:
            return False
        self.credit = 0.0
        self.outcomes[kind] = min(self.outcomes[kind], MIN_RETRY_STEPS)  # a change is to be seen soon
        return True

    def update(self, kind: int, tokens: float, seconds: float, levels: int, *, reads: bool = False) -> float:
        """What came of a call. reads: it had much to read first, and its time says nothing of the next one's.
        Returns the seconds that count."""
        if not reads:
            if self.calls:
                seconds = min(seconds, 4 * self.seconds)  # a hiccup must not keep a drafter out for long
            share = max(EMA_WEIGHT, 1 / (1 + self.calls))
            self.seconds += share * (seconds - self.seconds)
            self.level += share * (seconds / max(1, levels) - self.level)
            self.calls += 1
        # Nearly the mean: most calls gain nothing, and a row of those must not keep a drafter out.
        self.outcomes[kind] += self.outcomes[kind] < MAX_RETRY_STEPS
        self.tokens[kind] += (tokens - self.tokens[kind]) / self.outcomes[kind]
        return seconds
