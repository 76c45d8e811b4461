"""A request decoded to its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from paceline.speculative.interfaces import UNLIMITED, Budget, Drafter, Grammar, Target
from paceline.speculative.loop import ActiveRequest, decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Step

NO_DRAFTS = Budget(0, 0)


def decoded(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    n: int,
    budget: Budget = NO_DRAFTS,
    *,
    grammar: Grammar | None = None,
    chunk: int = UNLIMITED,
    **request: Any,
) -> tuple[list[int], list[Step]]:
    """Return the emitted tokens and the steps. request: other fields of the request."""
    with closing(begin(target, drafter, prompt, n, grammar=grammar, **request)) as active:
        steps = [step for _, step in decode(target, drafter, FixedPolicy(budget), [active], chunk=chunk)]
    return [token for step in steps for token in step.tokens], steps


def begin(
    target: Target,
    drafter: Drafter,
    prompt: Sequence[int],
    n: int,
    *,
    grammar: Grammar | None = None,
    rule: str = "auto",
    **request: Any,
) -> ActiveRequest:
    """Open a request of `n` tokens. request: its other fields."""
    asked = GenerationRequest(prompt=prompt, max_tokens=n, **request)
    return start_request(target, drafter, asked, grammar=grammar, rule=rule)
