"""A failure in one request of a batch ends only that request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from decoding import begin
from paceline.backends.toy import ToyTarget
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, Drafter, Grammar
from paceline.speculative.loop import ActiveRequest, decode
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step

V, BUDGET = 6, Budget(3, 3)
PROMPTS = ([1, 2, 1, 2], [3, 4, 3], [5, 0, 5, 0, 5])
FAILING = 1  # of the prompts


class Ends(Grammar):
    """A grammar that allows `after` tokens. broken: it then raises instead of allowing none."""

    def __init__(self, after: int, broken: bool) -> None:
        self.left, self._broken = after, broken

    def mask(self, path: Sequence[int]) -> Any:
        if self.left > len(path):
            return np.ones(V, dtype=np.bool_)
        if self._broken:
            raise ZeroDivisionError("in the grammar")
        return np.zeros(V, dtype=np.bool_)

    def commit(self, tokens: Sequence[int]) -> None:
        self.left -= len(tokens)


def never(_: int) -> bool:
    return False


def bad_stop(after: int) -> Callable[[int], bool]:
    left = after

    def stop(_: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise ZeroDivisionError("in the stop")
        return False

    return stop


def model() -> Drafter:
    return ModelDrafter(ToyTarget(V, seed=2), V)


def lookup() -> Drafter:
    return LookupDrafter(1, 2)


def begun(target: ToyTarget, drafter: Drafter, at: int, temperature: float, **fault: Any) -> ActiveRequest:
    sampling = Sampling(temperature=temperature)
    return begin(target, drafter, PROMPTS[at], 12, sampling=sampling, seed=at, **fault)


def text(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("made", [model, lookup])
@pytest.mark.parametrize("kind", ["grammar", "broken grammar", "stop"])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_the_others_are_decoded_as_if_they_were_alone(
    made: Callable[[], Drafter], temperature: float, kind: str, after: int
) -> None:
    target = ToyTarget(V, seed=2)
    alone = []
    for at in range(len(PROMPTS)):
        drafter = made()
        request = begun(target, drafter, at, temperature)
        alone.append(text([step for _, step in decode(target, drafter, FixedPolicy(BUDGET), [request])]))

    drafter = made()
    grammar: Grammar | None = None if kind == "stop" else Ends(after, kind == "broken grammar")
    stop = bad_stop(after) if kind == "stop" else never
    requests = [
        begun(
            target,
            drafter,
            at,
            temperature,
            **({"grammar": grammar, "should_stop": stop} if at == FAILING else {}),
        )
        for at in range(len(PROMPTS))
    ]
    steps: dict[int, list[Step]] = {id(request): [] for request in requests}
    expected = UsageError if kind == "grammar" else ZeroDivisionError
    decoding = decode(target, drafter, FixedPolicy(BUDGET), requests)

    def to_the_end() -> None:
        for request, step in decoding:
            steps[id(request)].append(step)

    with pytest.raises(expected):
        to_the_end()
    for at, request in enumerate(requests):
        said = text(steps[id(request)])
        if at == FAILING:
            assert isinstance(request.error, expected)
            assert said == alone[at][: len(said)]
            assert len(said) <= after
        else:
            assert (request.error, request.stop_reason) == (None, "length")
            assert said == alone[at]
        assert request.session.tokens == [*PROMPTS[at], *said]  # nothing is in it that was not told
        request.close()
