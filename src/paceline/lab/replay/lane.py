"""One method's part in a replay: recorded requests through the real loop, one by one or several together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from paceline.core.cost import Costs
from paceline.core.decode import ActiveRequest, Clock, decode, start
from paceline.core.errors import ContractError, UsageError
from paceline.core.policy import Fixed, Policy
from paceline.core.ports import NO_BUDGET, Drafter, Learner, Target
from paceline.core.record import Stats, Step
from paceline.core.request import GenerationRequest
from paceline.core.vocab import Vocab
from paceline.costing import to_stderr
from paceline.engines.recorded import RecordedTarget, Recording
from paceline.lab.bench.method import Method
from paceline.lab.replay import clairvoyant
from paceline.lab.replay.clairvoyant import Asked, Chances
from paceline.lab.replay.clock import ClockedDrafter
from paceline.lab.replay.positions import Positions
from paceline.lab.replay.record import Played
from paceline.lab.replay.simulated import SimulatedDrafter, SimulatedTarget, VirtualClock, WatchedPolicy
from paceline.makers import NO_CORPORA, Corpora, make_drafter, make_policy

ENDLESS = 1 << 30  # tokens; a request ends with its recording, which no drafter knows beforehand


@dataclass(frozen=True)
class Means:
    """What every method of a replay may use. draft: a draft model, which runs along the record. costs: what
    passes take; None where no speeds are predicted. proposing: seconds a proposal, by drafter, beside a draft
    model's passes. bound: whether to find out what a clairvoyant would take."""

    vocab: Vocab
    text: object = None
    corpora: Corpora = NO_CORPORA
    draft: Target | None = None
    costs: Costs | None = None
    proposing: Mapping[str, float] = field(default_factory=dict)
    bound: bool = False


def play(
    target: Target, drafter: Drafter, policy: Policy, recording: Recording, clock: Clock = perf_counter
) -> Iterator[Step]:
    """One recording, step by step; see `together`."""
    for _, step in together(target, drafter, policy, [recording], clock):
        yield step


def together(
    target: Target,
    drafter: Drafter,
    policy: Policy,
    recordings: Sequence[Recording],
    clock: Clock = perf_counter,
) -> Iterator[tuple[int, Step]]:
    """Recordings that begin together and share passes until each has ended: the number of one, and its step.
    Raises UsageError for a drafter that needs the model itself, ContractError where another text was decoded
    than was recorded."""
    requests: list[ActiveRequest] = []
    try:
        for one in recordings:
            request = GenerationRequest(
                prompt=one.prompt,
                max_tokens=ENDLESS,
                should_stop=ends(len(one.tokens)),
                ignore_eos=True,
            )
            requests.append(start(target, drafter, request))
            requests[-1].noise = one.noise
        numbers = {id(request): i for i, request in enumerate(requests)}
        for active, step in decode(target, drafter, policy, requests, clock):
            if step.tree.probe:
                raise UsageError(
                    f"{drafter.name}: asks the target about tokens that nobody decoded, so it cannot be "
                    "replayed; leave it out, or measure it with `paceline bench`"
                )
            yield numbers[id(active)], step
        for active, one in zip(requests, recordings, strict=True):
            if tuple(active.session.tokens[active.n_prompt :]) != one.tokens:
                raise ContractError(f"{drafter.name}: decoded another text than was recorded")
    finally:
        for active in requests:
            active.close()


def ends(left: int) -> Callable[[int], bool]:
    """Stops a request after so many tokens."""

    def stop(_token: int) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    return stop


class Lane:
    """Owns a method's drafters and what it has done so far. recordings: all that will be played."""

    def __init__(self, method: Method, recordings: Sequence[Recording], means: Means) -> None:
        self.method, self.means = method, means
        self.stats, self.positions = Stats(), Positions()
        recorded = RecordedTarget(means.vocab, recordings, means.text)
        self._target: Target = recorded
        self._clock: Clock = perf_counter
        draft, costs = means.draft, means.costs
        if costs is not None:
            self._clock = clock = VirtualClock()
            self._target = SimulatedTarget(recorded, costs.target, clock, costs.step)
            if draft is not None and costs.draft is not None:
                draft = SimulatedTarget(draft, costs.draft, clock)
        made, self.drafting = make_drafter(
            method.drafting, self._target, draft, means.corpora, costs, to_stderr
        )
        self._learners = [made]
        self.drafter = ClockedDrafter(made)
        self._loops: Drafter = self.drafter
        # Its own costs: what a policy learns of them must not change what passes take.
        self.policy: Policy = make_policy(self.drafting, copy.deepcopy(costs), self._clock)
        if costs is not None:
            self.policy = self._watched = WatchedPolicy(self.policy)
            self._loops = SimulatedDrafter(self.drafter, means.proposing, clock)
        self._paid = clairvoyant.paid(made, self.drafting)
        self.unbound = clairvoyant.unbound(self.drafting, means.draft is not None)
        self._asked: Asked | None = None
        if costs is not None and means.bound and self.unbound is None and not method.plain:
            self._ask(recordings)

    def _ask(self, recordings: Sequence[Recording]) -> None:
        """A second set of drafters, which sees the same texts one token after the other."""
        means = self.means
        self._along = RecordedTarget(means.vocab, recordings, means.text)
        drafter, _ = make_drafter(self.drafting, self._along, means.draft, means.corpora, means.costs)
        self._learners.append(drafter)
        self._asked = Asked(drafter)

    def forget(self) -> None:
        self.policy.forget()
        for drafter in self._learners:
            if isinstance(drafter, Learner):
                drafter.forget()

    def play(self, recordings: Sequence[Recording]) -> list[Played]:
        """All of them together."""
        each, drafted_steps = [Stats() for _ in recordings], [0] * len(recordings)
        chances = [Chances(one.tokens, self._paid) for one in recordings]
        for i, step in together(self._target, self._loops, self.policy, recordings, self._clock):
            if self._asked is not None:
                chances[i].add(each[i].tokens, step.proposal)
            for stats in (self.stats, each[i]):
                stats.add(step)
            self.positions.add(step)
            drafted_steps[i] += len(step.tree) > 0
        return [
            Played(
                tokens=stats.tokens,
                steps=stats.steps,
                drafted_steps=with_draft,
                drafted=stats.drafted,
                accepted=stats.accepted,
                seconds=None if self.means.costs is None else stats.seconds,
                bound=None if self._asked is None else self._least(one, known),
            )
            for one, stats, with_draft, known in zip(recordings, each, drafted_steps, chances, strict=True)
        ]

    def _least(self, recording: Recording, chances: Chances) -> float:
        """Seconds of a clairvoyant."""
        asked, costs = self._asked, self.means.costs
        assert asked is not None
        assert costs is not None
        asked.most, asked.chances = self._watched.most, chances
        for _ in play(self._along, asked, Fixed(NO_BUDGET), recording):
            pass
        chances.follow(asked.most, cost=len(self._paid))
        return clairvoyant.seconds(chances, len(recording.prompt), costs)

    def close(self) -> None:
        self.drafter.close()
        if self._asked is not None:
            self._asked.close()
