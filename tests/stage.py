"""The real loop with a given text, drafters of a given accuracy, and a clock of simulated costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.backends.recorded import (
    RecordedForward,
    RecordedSession,
    Recording,
    ReplayTarget,
    numeric_vocab,
)
from paceline.bench.replay.simulated import VirtualClock
from paceline.drafters.compose import PortfolioDrafter
from paceline.speculative.interfaces import Budget, Drafter, Features, RequiredOutputs
from paceline.speculative.loop import ActiveRequest, decode, start_request
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.scheduler import ScheduledRequest, Scheduler
from paceline.speculative.stats import Stats, Step
from paceline.speculative.tree import EMPTY, DraftTree, chain

V = 16
Passing = VirtualClock


class Actor(ReplayTarget):
    """A target that emits the given text; `curve` is the time of a pass by its rows."""

    def __init__(self, recordings: Sequence[Recording], curve: Mapping[int, float], clock: Passing) -> None:
        super().__init__(numeric_vocab(V), recordings)
        self._cost, self._clock = PassCosts({MIN_CONTEXT_BUCKET: curve}), clock

    def forward(
        self, batch: Sequence[tuple[RecordedSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[RecordedForward]:
        outs = super().forward(batch, want)
        self._clock.now += self._cost.seconds(sum(out.computed for out in outs), MIN_CONTEXT_BUCKET)
        return outs


@dataclass
class Place:
    """The position of a request in its text."""

    text: tuple[int, ...]
    at: int = 0

    def update(self, step: Step, features: Features) -> None:
        self.at += len(step.tokens)

    def close(self) -> None: ...


@dataclass
class Prompter:
    """Whispers `length` tokens, each of which is right as often as `right` says of its place in the text, in
    `seconds`, and as many again for each level. score: what it says of itself; None is the truth.
    stepwise: asks its budget before each token, as who has to compute them does. asked: the places where it
    was."""

    name: str
    right: Callable[[int], float]
    seconds: float = 0.0
    level: float = 0.0
    length: int = 4
    score: float | None = None
    stepwise: bool = False
    seed: int = 0
    clock: Passing = field(default_factory=Passing)
    asked: list[int] = field(default_factory=list)
    spent: float = 0.0
    required_outputs = RequiredOutputs()

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> Place:
        return Place(text_of(int(prompt[0]) * V + int(prompt[1])))

    def propose(self, batch: Sequence[tuple[Place, Budget]]) -> list[DraftTree]:
        return [self._whisper(place, budget) for place, budget in batch]

    def _whisper(self, place: Place, budget: Budget) -> DraftTree:
        self.asked.append(place.at)
        began = self.clock.now
        self.clock.now += self.seconds
        said: list[int] = []
        scores: list[float] = []
        reach_probability, good = 1.0, True
        for truth in place.text[place.at : place.at + min(self.length, budget.depth, budget.nodes)]:
            right = self.right(place.at)
            score = right if self.score is None else self.score
            reach_probability = budget.reach_probability(self.name, score, len(said) + 1, reach_probability)
            if self.stepwise and not budget.should_extend(score, len(said), len(said), reach_probability):
                break
            self.clock.now += self.level
            good = good and self._random.random() < right
            said.append(truth if good else (truth + 1) % V)
            scores.append(score)
            if self.stepwise and not budget.should_deepen(len(said), len(said), reach_probability):
                break
        self.spent += self.clock.now - began
        return chain(said, self.name, scores) if said else EMPTY

    def close(self) -> None: ...


LENGTH = 20_000


def text_of(number: int) -> tuple[int, ...]:
    """Return a long text without a pattern."""
    return tuple(np.random.default_rng(number).integers(V, size=LENGTH).tolist())


@dataclass
class Play:
    """A run so far: its clock and its emitted tokens."""

    policy: Any
    clock: Passing
    target: Actor
    drafter: Drafter
    prompters: Sequence[Prompter]
    requests: list[ActiveRequest]

    def steps(self) -> Iterator[tuple[ActiveRequest, Step]]:
        return decode(self.target, self.drafter, self.policy, self.requests, self.clock)

    def perform(self) -> Play:
        """Run to the end."""
        for _ in self.steps():
            pass
        return self

    @property
    def tokens(self) -> int:
        return sum(request.n_tokens for request in self.requests)

    @property
    def share(self) -> float:
        """The share of time in drafting."""
        return sum(prompter.spent for prompter in self.prompters) / self.clock.now


def stage(
    curve: Mapping[int, float],
    prompters: Sequence[Prompter],
    tokens: int,
    *,
    requests: int = 1,
    policy: DraftPolicy | None = None,
    **most: Any,
) -> Play:
    """Make a run of new requests, by default with the goodput policy."""
    clock = Passing()
    for prompter in prompters:
        prompter.clock = clock
    recordings = [Recording(divmod(number, V), text_of(number)) for number in range(requests)]
    target = Actor(recordings, curve, clock)
    policy = policy or GoodputPolicy(
        DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: curve})), clock=clock, **most
    )
    drafter = PortfolioDrafter(list(prompters))
    started = [
        start_request(
            target, drafter, GenerationRequest(prompt=recording.prompt, max_tokens=tokens, ignore_eos=True)
        )
        for recording in recordings
    ]
    return Play(policy, clock, target, drafter, prompters, started)


class Asking:
    """The parts of a request that a policy reads before the first step."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(tokens=[0], pending_tokens=0)
        self.n_draft = 8
        self.stats = Stats()

    @property
    def context_length(self) -> int:
        return len(self.session.tokens)


def asking(n: int) -> list[Any]:
    return [Asking() for _ in range(n)]


def decider(curve: Mapping[int, float], **most: Any) -> GoodputPolicy:
    """Make a goodput policy in a process that has accepted long drafts."""
    rate = GoodputPolicy(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: curve})), clock=lambda: 0.0, **most)
    rate._max_first_draft = 1 << 10
    return rate


def add_to(scheduler: Scheduler, prompt: Sequence[int], **how: Any) -> ScheduledRequest:
    """how: other fields of the request."""
    request = GenerationRequest(prompt=prompt, **how)
    scheduled = ScheduledRequest(request, request.should_stop)
    scheduler.add(scheduled)
    return scheduled
