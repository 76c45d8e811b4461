"""A record in the target's place: it says what was recorded, and nothing that was drafted beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import begin, decoded
from paceline.backends.recorded import Recording, ReplayTarget, numeric_vocab
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import ActiveRequest, decode
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step

GREEDY = Sampling()
V = 6
PROMPT, SAID = (3, 1, 4), (1, 5, 2, 0, 5, 3, 5)


def target(*recordings: Recording, size: int = V) -> ReplayTarget:
    return ReplayTarget(numeric_vocab(size), recordings or (Recording(PROMPT, SAID),))


def opened(one: ReplayTarget, prompt: Sequence[int] = PROMPT) -> Any:
    session = one.open()
    session.extend(prompt)
    return session


def model(temperature: float = 0.0) -> ModelDrafter:
    return ModelDrafter(ToyTarget(V, seed=1, noise=0.3), V, temperature=temperature)


MAKERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "lookup": lambda: LookupDrafter(1, 2),
    "model": model,
    "model, sampled": lambda: model(0.9),
    "lookup,model": lambda: ComposedDrafter([LookupDrafter(2, 3), model()]),
}


class Ends:
    """Stops a request where its recording ends."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, token: int) -> bool:
        self.left -= 1
        return self.left == 0


def replayed(
    drafter: Drafter, recording: Recording, budget: Budget, sampling: Sampling = GREEDY
) -> tuple[ActiveRequest, list[Step]]:
    stop = Ends(len(recording.tokens))
    request = begin(target(recording), drafter, recording.prompt, 1000, sampling=sampling, should_stop=stop)
    steps = [step for _, step in decode(target(), drafter, FixedPolicy(budget), [request])]
    return request, steps


tokens = st.integers(0, V - 1)
recordings = st.builds(
    Recording,
    st.lists(tokens, min_size=1, max_size=12).map(tuple),
    st.lists(tokens, min_size=1, max_size=30).map(tuple),
)


@given(recording=recordings, width=st.integers(1, 3), temperature=st.sampled_from([0.0, 0.8]))
@settings(max_examples=30, deadline=None)
@pytest.mark.parametrize("name", MAKERS)
def test_whatever_drafts_and_samples_the_record_is_decoded(
    name: str, recording: Recording, width: int, temperature: float
) -> None:
    budget = Budget(5, 5 * width, width=width, p_split=0.05)
    request, steps = replayed(MAKERS[name](), recording, budget, Sampling(temperature=temperature))
    decoded = [token for step in steps for token in step.tokens]
    assert tuple(decoded) == recording.tokens == tuple(request.session.tokens[request.n_prompt :])
    assert request.stop_reason == "stop"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["none", "lookup", "model", "lookup,model"])
def test_a_replay_takes_the_steps_that_the_run_itself_took(name: str, seed: int) -> None:
    """Compare all steps but the last, which the end of the record cuts short."""
    real, prompt, budget = ToyTarget(V, seed=seed), [1, 2, 3, 1, 2], Budget(4, 8, width=2, p_split=0.05)
    drafter = MAKERS[name]()
    said, lived = decoded(real, drafter, prompt, 60, budget)
    record = Recording(tuple(prompt), tuple(said[:40]))
    _, steps = replayed(MAKERS[name](), record, budget)
    assert len(steps) > 5
    for step, was in zip(steps[:-1], lived, strict=False):
        assert (step.tokens, step.path, step.tree) == (was.tokens, was.path, was.tree)


def test_requests_with_the_same_prompt_take_turns_and_play_together() -> None:
    two = target(Recording(PROMPT, (0, 1, 0)), Recording(PROMPT, (5, 4, 5)), Recording((1,), (2, 2, 2)))
    drafter = LookupDrafter(1, 2)
    requests = [
        begin(two, drafter, prompt, 9, should_stop=Ends(3)) for prompt in (PROMPT, (1,), PROMPT, PROMPT)
    ]
    for _ in decode(two, drafter, FixedPolicy(Budget(3, 3)), requests):
        pass
    said = [tuple(request.session.tokens[request.n_prompt :]) for request in requests]
    assert said == [(0, 1, 0), (2, 2, 2), (5, 4, 5), (0, 1, 0)]


def test_what_was_not_recorded_cannot_be_played() -> None:
    one = target()
    session = one.open()
    with pytest.raises(UsageError, match="no recording has this prompt of 2 tokens"):
        session.extend(PROMPT[:2])
    with pytest.raises(UsageError, match="empty"):
        session.extend([])
    with pytest.raises(UsageError, match="outside the vocabulary of 6"):
        begin(one, NoDrafter(), [V], 1)
    with pytest.raises(UsageError, match="token ids only"):
        _ = one.text
    assert ReplayTarget(numeric_vocab(V), [], text="its tokenizer").text == "its tokenizer"
