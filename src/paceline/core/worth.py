"""What it is worth to ask a drafter, learned from what asking it has brought."""

from __future__ import annotations

from dataclasses import dataclass, field

SURE = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # how sure the draft was before: kinds of steps told apart
SHARE = 1 / 8  # of the last asking in how long the next is expected to take
FIRST, LAST = 8, 64  # what is expected of the next outcome rests on so many: the welcome, then on the last
PROBING = 0.01  # of all time, at most, goes into asking drafters that have not paid
SHORTEST, LONGEST = 8, 512  # tokens between two such probes
WELCOME = 4  # so often a drafter is asked before it is judged


def kind(survival: float) -> int:
    """Of a step, by the survival of the likeliest guess before the drafter was asked."""
    return sum(survival > edge for edge in SURE)


@dataclass
class Worth:
    """One drafter's. gain: tokens that it adds to what the step is worth, once they are verified, by the kind
    of step; outcomes: how many each of them rests on. seconds: of asking it; level: of each token deeper
    that it computes. pause: tokens until it is probed again where it does not pay; waited: those since it
    was asked last."""

    gain: list[float] = field(default_factory=lambda: [1.0] * (len(SURE) + 1))
    outcomes: list[int] = field(default_factory=lambda: [FIRST] * (len(SURE) + 1))
    seconds: float = 0.0
    level: float = 0.0
    asked: int = 0
    pause: int = SHORTEST
    waited: int = 0

    def took(self, seconds: float, levels: int) -> None:
        if self.asked:
            seconds = min(seconds, 4 * self.seconds)  # a hiccup must not put a drafter off for long
        share = max(SHARE, 1 / (1 + self.asked))
        self.seconds += share * (seconds - self.seconds)
        self.level += share * (seconds / levels - self.level)
        self.asked += 1

    def brought(self, kind: int, gain: float, rate: float, probe: bool) -> None:
        # Nearly the mean: most outcomes are nothing, and a drafter must not be put off by a row of those.
        self.outcomes[kind] += self.outcomes[kind] < LAST
        self.gain[kind] += (gain - self.gain[kind]) / self.outcomes[kind]
        if gain > rate * self.seconds:
            self.pause = SHORTEST
        elif probe:
            self.pause = min(2 * self.pause, LONGEST)

    def knew(self) -> None:
        """It was right, asked for a probe or not: should it have become useful, that is to be found soon."""
        self.pause = max(SHORTEST, self.pause // 4)

    def pays(self, kind: int, rate: float) -> bool:
        return self.asked < WELCOME or self.gain[kind] > rate * self.seconds

    def due(self, probing: float, spent: float) -> bool:
        """Whether to ask it all the same, to see what has become of it. probing: seconds of all such probes
        so far, spent: seconds in all."""
        return self.waited >= self.pause and probing + self.seconds <= PROBING * spent
