"""Requests limit their draft length and drafters, independently of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from decoding import begin
from paceline.backends.toy import ToySession, ToyTarget
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, Drafter, Session
from paceline.speculative.loop import ActiveRequest, decode, start_request
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from stage import Passing

V = 6
PROMPT = [1, 2, 3] * 6
BUDGET = Budget(6, 12, width=2)


def policies() -> list[DraftPolicy]:
    return [
        FixedPolicy(BUDGET),
        GoodputPolicy(
            DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: {1: 1.0, 8: 1.1, 64: 2.0}})), clock=Passing()
        ),
    ]


def drafters() -> list[Any]:
    parts: list[Drafter] = [LookupDrafter(1, 3), ModelDrafter(ToyTarget(V, seed=1, noise=0.1), V)]
    return [ComposedDrafter(parts), PortfolioDrafter(parts)]


def decoded(
    drafter: Any, policy: DraftPolicy, *wishes: dict[str, Any]
) -> tuple[list[ActiveRequest], list[list[Any]]]:
    target = ToyTarget(V, seed=1)
    requests = [begin(target, drafter, PROMPT, 40, **wish) for wish in wishes]
    steps: dict[ActiveRequest, list[Any]] = {request: [] for request in requests}
    for request, step in decode(target, drafter, policy, requests):
        steps[request].append(step)
    return requests, list(steps.values())


def tokens(steps: Sequence[Any]) -> list[int]:
    return [token for step in steps for token in step.tokens]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("drafter", [0, 1])
@pytest.mark.parametrize("n_draft", [0, 1, 2])
def test_no_draft_is_longer_than_the_request_allows(
    n_draft: int, drafter: int, policy: int, temperature: float
) -> None:
    how: dict[str, Any] = {"sampling": Sampling(temperature=temperature), "seed": 5}
    _, (free, bound) = decoded(drafters()[drafter], policies()[policy], how, {**how, "n_draft": n_draft})
    assert max(max(step.tree.depths(), default=0) for step in bound) == n_draft
    assert max(max(step.tree.depths(), default=0) for step in free) > 2
    assert tokens(free) == tokens(bound)


@pytest.mark.parametrize("policy", [0, 1])
@pytest.mark.parametrize("drafter", [0, 1])
@pytest.mark.parametrize("only", [set(), {"lookup"}, {"model"}])
def test_only_those_are_called_that_the_request_allows(only: set[str], drafter: int, policy: int) -> None:
    (_, bound), (free, steps) = decoded(
        drafters()[drafter], policies()[policy], {}, {"drafters": frozenset(only)}
    )
    assert {name for name, one in bound.stats.by_source.items() if one.tried} == only
    assert tokens(free) == tokens(steps)


def test_of_a_request_that_wants_no_drafts_a_policy_learns_nothing_about_them() -> None:
    rate = policies()[1]
    (request,), _ = decoded(drafters()[1], rate, {"n_draft": 0})
    assert request.stats.steps == 40
    assert rate.summary is not None
    assert rate.summary.steps == 0
    decoded(drafters()[1], rate, {})
    assert rate.summary.steps > 0


def test_what_a_session_had_already_need_not_be_read() -> None:
    class Knowing(ToySession):
        """A session that has all but the last four tokens of a prompt cached."""

        def extend(self, tokens: Sequence[int]) -> None:
            super().extend(tokens)
            self.read(len(tokens) - 4)

    class Remembering(ToyTarget):
        def open(self, beside: Session | None = None) -> ToySession:
            return Knowing(self)

    request = begin(Remembering(V, seed=1), drafters()[0], PROMPT, 1)
    assert request.n_cached == len(PROMPT) - 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("prompt", []), ("max_tokens", 0), ("seed", -1), ("stop", [""]), ("logprobs", -1), ("min_tokens", 5)],
)
def test_a_request_refuses_values_that_no_model_can_take(name: str, value: Any) -> None:
    values: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 4} | {name: value}
    with pytest.raises(UsageError, match="empty" if value in ([], [""]) else name):
        GenerationRequest(**values)


def test_a_grammar_and_ignore_eos_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="ignore_eos"):
        GenerationRequest(prompt=PROMPT, max_tokens=4, ignore_eos=True, grammar=object())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prediction": (V,)}, "the prediction has a token id outside"),
        ({"prediction": (1, -1)}, "the prediction has a token id outside"),
        ({"sampling": Sampling(logit_bias={V: 1.0})}, f"logit_bias for token {V}"),
    ],
)
def test_predictions_and_biases_have_the_models_tokens(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        begin(ToyTarget(V, seed=1), drafters()[0], PROMPT, 4, **values)


class Shortened(ToySession):
    """A toy session that has only some of the prompt in its context."""

    def require_free(self) -> None: ...

    def extend_sparse(self, prompt: Sequence[int], positions: Sequence[int]) -> None:
        self.extend([prompt[at] for at in positions])


class EverySecond:
    description = "with every second token"

    def select(self, prompt: Sequence[int]) -> Sequence[int]:
        return range(1, len(prompt), 2)


def test_a_target_may_leave_out_prompt_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = ToyTarget(V, seed=1)
    drafter, request = LookupDrafter(1, 3), GenerationRequest(prompt=PROMPT, max_tokens=9)
    target.prompt_selector = None
    assert start_request(target, drafter, request).n_skipped == 0
    target.prompt_selector = EverySecond()
    monkeypatch.setattr(target, "open", lambda: Shortened(target))
    active = start_request(target, drafter, request)
    assert (active.n_skipped, active.n_cached) == (len(PROMPT) // 2, 0)
    assert active.session.tokens == PROMPT[1::2]
