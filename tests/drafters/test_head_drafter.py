"""A draft head that is not called rests: passes need not output hidden states for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from decoding import decoded
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter, Resting
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, RequiredOutputs
from paceline.speculative.loop import advance_requests, decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.tree import EMPTY, DraftTree
from tiny_heads import KINDS, tiny_drafter, toy

N_TOKENS = 60


@dataclass(frozen=True)
class Turned(Budget):
    """Calls heads while `on` is True."""

    on: dict[str, bool] = field(default_factory=lambda: {"head": True})

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return drafter == "lookup" or self.on["head"]

    is_due = should_call


class Recording(ToyTarget):
    """Keeps what each pass had to output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(6, seed=2, layers=3, **settings)
        self.wanted: list[RequiredOutputs] = []

    def forward(self, batch: Sequence[Any], want: RequiredOutputs) -> Any:
        self.wanted.append(want)
        return super().forward(batch, want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_is_not_called_rests_and_drafts_again_when_it_is_due(kind: str) -> None:
    target, prompt = Recording(), [1, 2, 3, 4, 5, 0, 1]
    head = tiny_drafter(kind, target)
    drafter, budget = PortfolioDrafter([LookupDrafter(), head]), Turned(3, 3)
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=N_TOKENS))
    policy = FixedPolicy(budget)

    def passes(n: int) -> tuple[list[bool], list[bool]]:
        """Run passes. Return which had hidden states, and which a draft of the head."""
        seen, drafted = len(target.wanted), []
        for _ in range(n):
            ((_, step),) = advance_requests(target, drafter, policy, [request])
            drafted.append(kind in step.proposal.called and kind in step.proposal.drafter_names)
        return [want != NO_OUTPUTS for want in target.wanted[seen:]], drafted

    passes(1)  # the prompt
    assert passes(3) == ([True] * 3, [True] * 3)
    budget.on["head"] = False
    idle = Resting.max_idle
    assert passes(idle + 3) == ([True] * (idle - 1) + [False] * 4, [False] * (idle + 3))
    budget.on["head"] = True
    assert passes(4) == ([True] * 4, [False] + [True] * 3)
    for _ in decode(target, drafter, policy, [request]):
        pass
    plain, _ = decoded(toy(), NoDrafter(), prompt, N_TOKENS)
    assert request.session.tokens == [*prompt, *plain]
    request.close()
    assert drafter.required_outputs != NO_OUTPUTS  # of the next request's prompt


def test_a_head_rests_only_if_it_does_so_for_all_requests() -> None:
    target = toy()
    head = tiny_drafter("eagle3", target)
    first, second = head.open([1, 2], 0), head.open([2, 3], 0)
    for state in (first, second):
        assert head.required_outputs != NO_OUTPUTS
        for _ in range(Resting.max_idle):
            state.pass_over()
    assert head.required_outputs == NO_OUTPUTS
    second.wake()
    assert head.required_outputs != NO_OUTPUTS
    second.close()
    assert head.required_outputs == NO_OUTPUTS
    first.close()
    drafter = PortfolioDrafter([head])
    third = drafter.open([1, 2], 0)
    for _ in range(Resting.max_idle):
        third.parts[0].pass_over()  # type: ignore[attr-defined]
    assert drafter.propose([(third, Budget(2, 2))]) == [EMPTY]  # this budget calls it always
    assert drafter.required_outputs != NO_OUTPUTS


@dataclass(frozen=True)
class Waiting(Budget):
    """Is due, but waits until reading the prompt pays."""

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return False


def test_a_head_that_waits_for_its_prompt_does_not_rest() -> None:
    drafter = PortfolioDrafter([tiny_drafter("eagle3", toy())])
    state = drafter.open([1, 2, 3], 0)
    for _ in range(3 * Resting.max_idle):
        assert drafter.propose([(state, Waiting(2, 2))]) == [EMPTY]
    assert drafter.required_outputs != NO_OUTPUTS
