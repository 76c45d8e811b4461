"""Hidden states of a target and of its views, tested on the toy model."""

from __future__ import annotations

from typing import Any

import pytest

from enumeration import decided_distribution, distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafter_table import HEADS
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from tiny_heads import tiny_drafter, toy
from toy_head import HeadDrafter, HeadMemory

V = 6


@pytest.mark.parametrize("rollback", ["free", "restore"])
@pytest.mark.parametrize("chunk", [3, 1 << 40])
@pytest.mark.parametrize("n_prompt", [1, 2, 40, 90])
def test_a_head_that_knows_the_model_is_always_right(rollback: Any, chunk: int, n_prompt: int) -> None:
    """One row that is off by one, or one missing prompt row, would make the head wrong."""
    target = ToyTarget(V, seed=3, rollback=rollback)
    drafter = HeadDrafter(target)
    prompt = [(i * i) % V for i in range(n_prompt)]
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=60))
    steps = [
        s for _, s in decode(target, drafter, FixedPolicy(Budget(5, 5)), [request], chunk=chunk) if s.tokens
    ]
    blind = len(steps[0].tree) == 0  # a short prompt is read with the first draft
    assert request.stats.drafted == request.stats.accepted > 0
    assert len(steps) == blind + -(-(60 - blind) // 6)
    memory = request.drafter_state
    assert isinstance(memory, HeadMemory)
    assert sorted(memory.hidden) == list(range(len(memory.tokens) - 1))


SAMPLED, NAMES = 0.9, [name for name in HEADS if name != "mtp"]
flat, seen = ToyTarget(3, seed=4, rollback="restore"), toy(3, seed=4, layers=3)
CASES: dict[str, tuple[ToyTarget, Drafter]] = {
    "head": (flat, HeadDrafter(flat)),
    "a draft that cannot rewind": (
        ToyTarget(3, seed=4),
        ModelDrafter(ToyTarget(3, seed=4, noise=0.5, rollback="restore"), 3, temperature=SAMPLED),
    ),
    "lookup, head": (flat, ComposedDrafter([LookupDrafter(1, 2), HeadDrafter(flat)])),
    "none": (flat, NoDrafter()),
    **{f"{name}, greedy": (seen, tiny_drafter(name, seen)) for name in NAMES},
    "block, recurrent Markov head": (seen, tiny_drafter("block", seen, SAMPLED, markov="rnn", markov_rank=2)),
}
for kind in ("free", "restore"):  # drafts are drawn from three tokens, or two of them, or are greedy
    small = ToyTarget(3, seed=4, layers=2, rollback=kind)
    some = toy(3, seed=4, layers=3, rollback=kind)
    CASES |= {
        f"early exit, {kind}": (small, ModelDrafter(small.view(exits=1), 3, temperature=SAMPLED)),
        f"early exit, greedy, {kind}": (small, ModelDrafter(small.view(exits=1), 3)),
    }
    for name in NAMES:
        CASES[f"{name}, {kind}"] = some, tiny_drafter(name, some, SAMPLED)
        CASES[f"{name}, some tokens, {kind}"] = some, tiny_drafter(name, some, SAMPLED, draft_ids=[0, 2])


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", [name for name in CASES if name.partition(",")[0] in HEADS])
def test_drafts_of_heads_leave_the_distribution_as_it_is(name: str, width: int) -> None:
    """Three tokens, so that heads draft once the hidden states of the prompt are known."""
    target, drafter = CASES[name]
    if target.caps.max_branches < width:
        pytest.skip("this target takes chains only")
    sampling, prompt = Sampling(temperature=0.8), [1, 2]
    budget = Budget(2, 2 * width, width=width, p_split=0.05)
    found = drafted_distribution(target, drafter, prompt, budget, sampling, 3)
    plain = plain_distribution(target, prompt, sampling, 3)
    assert distance(found, plain) < 1e-12
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=9))
    for _ in decode(target, drafter, FixedPolicy(budget), [request]):
        pass
    assert request.stats.drafted  # it does draft
    request.close()


@pytest.mark.parametrize("chunk", [1, 1 << 40])
@pytest.mark.parametrize("name", CASES)
def test_the_distribution_is_plain_samplings_to_the_last_digit(name: str, chunk: int) -> None:
    """Two requests share a pass, one with a prompt that is read in pieces; all draws are enumerated."""
    target, drafter = CASES[name]
    sampling, n = Sampling(temperature=0.8), 2
    prompts = [[1], [2, 0, 1]]
    together = decided_distribution(
        target, drafter, prompts, lambda _: FixedPolicy(Budget(2, 2)), sampling, n, chunk=chunk
    )
    plain = [plain_distribution(target, prompt, sampling, n) for prompt in prompts]
    error = 0.0
    for outputs, p in together.items():
        expected = plain[0][outputs[0]] * plain[1][outputs[1]]
        error = max(error, abs(p - expected))
    assert sum(together.values()) == pytest.approx(1.0, abs=1e-12)
    assert error < 1e-12
