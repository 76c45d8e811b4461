"""Every outcome of a randomised function with its exact probability: the proof behind "lossless"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedState
from paceline.drafters.model import ModelDrafterState
from paceline.speculative.interfaces import UNLIMITED, Budget, Drafter, Grammar, RequiredOutputs
from paceline.speculative.loop import Clock, decode, start_request
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Probabilities, Sampling, TokenDistribution, probabilities
from paceline.speculative.tree import EMPTY

Output = tuple[int, ...]
T = TypeVar("T")


class Tape:
    """An Rng that replays given answers, then takes the first possible one, and remembers the others."""

    def __init__(self, answers: Sequence[int]) -> None:
        self._given = list(answers)
        self.taken: list[int] = []
        self.alternatives: list[list[int]] = []
        self.probability = 1.0

    def _answer(self, options: list[int], chances: Sequence[float]) -> int:
        at = len(self.taken)
        if at < len(self._given):
            answer = self._given[at]
            self.alternatives.append([])
        else:
            answer = options[0]
            self.alternatives.append(options[1:])
        self.taken.append(answer)
        self.probability *= chances[options.index(answer)]
        return answer

    def accept(self, probability: float) -> bool:
        chances = {1: probability, 0: 1.0 - probability}
        options = [k for k, v in chances.items() if v > 0.0]
        return bool(self._answer(options, [chances[k] for k in options]))

    def draw(self, p: Probabilities) -> int:
        options = np.flatnonzero(p).tolist()
        return self._answer(options, [float(p[k]) for k in options])

    def draw_at(self, place: int, row: TokenDistribution) -> int:
        return int(row.ids[self.draw(row.p)])


def outcomes(run: Callable[[Tape], T]) -> Iterator[tuple[float, T]]:
    """Yield all results of `run` with their probabilities, by depth-first search over its random answers."""
    waiting: list[list[int]] = [[]]
    while waiting:
        tape = Tape(waiting.pop())
        result = run(tape)
        yield tape.probability, result
        for at, others in enumerate(tape.alternatives):
            waiting += [[*tape.taken[:at], other] for other in others]


def drafted_distribution(
    target: ToyTarget,
    drafter: Drafter,
    prompt: Sequence[int],
    budget: Budget,
    sampling: Sampling,
    n: int,
    rule: str = "auto",
    grammar: Callable[[], Grammar] | None = None,
) -> dict[Output, float]:
    """Return the loop's outputs of `n` tokens with exact probabilities, over all draws of target and draft.
    grammar: makes a new one for every run."""
    decided = decided_distribution(
        target, drafter, [prompt], lambda _: FixedPolicy(budget), sampling, n, rule, grammar
    )
    return {output: probability for (output,), probability in decided.items()}


class Ticking:
    """A deterministic clock: every reading takes `tick` seconds."""

    def __init__(self, tick: float) -> None:
        self._tick, self._now = tick, 0.0

    def __call__(self) -> float:
        self._now += self._tick
        return self._now


def decided_distribution(
    target: ToyTarget,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    policy: Callable[[Clock], DraftPolicy],
    sampling: Sampling,
    n: int,
    rule: str = "auto",
    grammar: Callable[[], Grammar] | None = None,
    tick: float = 0.0,
    chunk: int = UNLIMITED,
) -> dict[tuple[Output, ...], float]:
    """Return the joint outputs of requests that share passes, `n` tokens each, with exact probabilities.
    policy: makes a new one for every run, which has learned nothing from another one."""

    def run(tape: Tape) -> tuple[Output, ...]:
        clock = Ticking(tick)
        requests = [
            start_request(
                target,
                drafter,
                GenerationRequest(prompt=prompt, max_tokens=n, sampling=sampling),
                rule=rule,
                grammar=None if grammar is None else grammar(),
            )
            for prompt in prompts
        ]
        tokens: dict[int, list[int]] = {}
        for request in requests:
            tokens[id(request)] = []
            request.rng = tape
            for memory in memories(request.drafter_state):
                memory.rng = tape
        for request, step in decode(target, drafter, policy(clock), requests, clock, chunk):
            tokens[id(request)] += step.tokens
        for request in requests:
            request.close()
        return tuple(tuple(tokens[id(request)]) for request in requests)

    total: dict[tuple[Output, ...], float] = defaultdict(float)
    for probability, output in outcomes(run):
        total[output] += probability
    return dict(total)


def memories(memory: object) -> Iterator[ModelDrafterState]:
    """Yield the nested drafter states that draw random numbers."""
    if isinstance(memory, ModelDrafterState):
        yield memory
    elif isinstance(memory, ComposedState):
        for part in memory.parts:
            yield from memories(part)


def plain_distribution(
    target: ToyTarget,
    prompt: Sequence[int],
    sampling: Sampling,
    n: int,
    grammar: Callable[[], Grammar] | None = None,
) -> dict[Output, float]:
    """Return the distribution of `n` tokens of plain sampling, from the model's rows without the loop."""
    total: dict[Output, float] = {(): 1.0}
    for _ in range(n):
        longer: dict[Output, float] = {}
        for output, probability in total.items():
            history = [*prompt, *output]
            session = target.open()
            session.extend(history)
            logits = target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0)
            mask = None
            if grammar is not None:
                follows = grammar()
                follows.commit(output)
                mask = follows.mask(())
            p = probabilities(logits, sampling, history, mask)
            for token in np.flatnonzero(p).tolist():
                longer[(*output, token)] = probability * float(p[token])
        total = longer
    return total


def separately(*distributions: dict[Output, float]) -> dict[tuple[Output, ...], float]:
    """Return the joint distribution of independent requests: the product."""
    total: dict[tuple[Output, ...], float] = {(): 1.0}
    for distribution in distributions:
        total = {
            (*before, output): probability * more
            for before, probability in total.items()
            for output, more in distribution.items()
        }
    return total


def distance(a: Mapping[T, float], b: Mapping[T, float]) -> float:
    """Return the largest difference of any outcome's probability."""
    return max(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys())
