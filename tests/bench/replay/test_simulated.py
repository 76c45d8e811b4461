"""A virtual clock: the charged passes and rows are those that an engine computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.recorded import Recording, ReplayTarget, numeric_vocab
from paceline.bench.replay.replay import replay_recording, stop_after
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.engine import InferenceEngine
from paceline.speculative.interfaces import Budget, Drafter, RequiredOutputs, Target
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, chain

V = 6
ROW, PASS = 0.001, 1.0  # a cost that tells how many passes there were, and how many rows
COST = PassCosts.flat(PASS + ROW, ROW)
PROMPT, SAID = (3, 1, 4), (1, 5, 2, 0, 5, 3, 5)


def charged(clock: VirtualClock) -> tuple[int, int]:
    """Return the number of passes and rows."""
    rows = round(clock.now / ROW)
    return rows // round(PASS / ROW), rows % round(PASS / ROW)


def simulated(target: Target) -> tuple[SimulatedTarget, VirtualClock]:
    clock = VirtualClock()
    return SimulatedTarget(target, COST, clock), clock


def recorded(*recordings: Recording) -> ReplayTarget:
    return ReplayTarget(numeric_vocab(V), recordings or (Recording(PROMPT, SAID),))


def test_a_pass_costs_its_rows_and_time_stands_still_otherwise() -> None:
    target, clock = simulated(recorded())
    session = target.open()
    session.extend(PROMPT)
    assert clock() == 0.0
    target.forward([(session, chain([1, 5], "test"))], RequiredOutputs())
    assert clock() == pytest.approx(PASS + 3 * ROW)
    session.commit([0, 1], 2)
    target.forward([(session, EMPTY)], RequiredOutputs())
    assert clock() == pytest.approx(2 * PASS + 4 * ROW)
    assert list(session.tokens) == [*PROMPT, 1, 5, 2]
    target.close()


def test_passes_cost_the_mean_of_few_measurements_not_the_bound_of_a_policy() -> None:
    table = {16: {1: 1.0, 2: 1.3, 3: 1.2}}
    cost = PassCosts(table, 2.0, {16: {1: 9, 2: 1, 3: 1}})
    assert cost.seconds(3, 16) > 1.3
    clock = VirtualClock()
    target = SimulatedTarget(recorded(), cost, clock)
    session = target.open()
    session.extend(PROMPT)
    target.forward([(session, chain([1, 5], "test"))], RequiredOutputs())
    assert clock() == pytest.approx(1.2)


def test_times_are_those_of_the_clock() -> None:
    recording = Recording((1, 2, 3), (1, 2, 3, 1, 2, 3, 5))
    clock = VirtualClock()
    target = SimulatedTarget(recorded(recording), COST, clock, 0.25)
    policy = FixedPolicy(Budget(2, 2))
    engine = InferenceEngine(target, LookupDrafter(1, 2), policy, clock=clock, detokenize=False)
    stats = replay_recording(engine, recording)
    assert stats.drafted > 0
    assert stats.forward_seconds == pytest.approx(PASS * stats.steps + ROW * (stats.steps + stats.drafted))
    assert stats.commit_seconds == pytest.approx(0.25 * stats.steps)
    assert stats.seconds == pytest.approx(clock())


class Counting:
    """A counter of the passes and rows of llama.cpp."""

    def __init__(self, target: LlamaTarget) -> None:
        self.target, self.passes, self.rows = target, 0, 0
        decode_one = target._decoder._decode_batch

        def count() -> None:
            self.passes += 1
            self.rows += len(target._decoder.batch)
            decode_one()

        target._decoder._decode_batch = count  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def llama(models: Path) -> Iterator[Counting]:
    target = LlamaTarget(models / "draft.gguf", n_ctx=512, sessions=2)
    yield Counting(target)
    target.close()


def answered(prompt: Sequence[int]) -> Recording:
    return Recording(tuple(prompt), tuple((7 * i + len(prompt)) % 50 for i in range(60)))


def played(target: Target, drafter: Drafter, budget: Budget, some: Sequence[Recording]) -> list[Step]:
    requests = []
    for one in some:
        stop = stop_after(len(one.tokens))
        asked = GenerationRequest(prompt=one.prompt, max_tokens=1 << 30, should_stop=stop)
        requests.append(start_request(target, drafter, asked))
    steps = [step for _, step in decode(target, drafter, FixedPolicy(budget), requests)]
    for request in requests:
        request.close()
    return steps


def counted(llama: Counting, some: Sequence[Recording], drafter: Any, budget: Budget) -> list[Step]:
    """Decode with the model as the draft, and compare its passes and rows with the charged ones."""
    size = llama.target.vocab.size
    draft, clock = simulated(llama.target)
    target = ReplayTarget(numeric_vocab(size), some)
    made = drafter(ModelDrafter(draft, size))
    llama.target.forget()
    passes, rows = llama.passes, llama.rows
    missing = sum(len(one.prompt) - 1 for one in some)  # prompts cost nothing
    steps = played(target, made, budget, some)
    assert charged(clock) == (llama.passes - passes, llama.rows - rows - missing)
    return steps


@pytest.mark.parametrize(("n_prompt", "width"), [(1, 1), (90, 3)])
def test_what_is_charged_is_what_llama_cpp_computes(llama: Counting, n_prompt: int, width: int) -> None:
    """Drafts grow level by level, are accepted or not, and the model catches up. Prompts are free."""
    some = [answered(range(10, 10 + n_prompt))]
    assert len(counted(llama, some, lambda draft: draft, Budget(4, 4 * width, width, p_split=0.0))) > 20


def test_a_draft_model_that_was_left_out_catches_up_at_the_usual_price(llama: Counting) -> None:
    """More of another drafter's tokens are accepted than fit into one pass of the model."""
    recording = Recording(tuple(range(50)), (60, 61, *range(50), 70, 71, 72))
    steps = counted(llama, [recording], lambda d: ComposedDrafter([LookupDrafter(1, 3), d]), Budget(45, 45))
    assert max(step.accepted.get("lookup", 0) for step in steps) > 32
    assert [steps[i].drafted.get("model", 0) > 0 for i in (0, -1)] == [True, True]
