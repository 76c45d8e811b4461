"""The first steps: drafts grow with acceptance, and a draft model prefills once that is worth it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Budget
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import FIRST_DRAFT_TOKENS, GoodputPolicy
from paceline.speculative.policy.ledger import FREE_PASSES, MAX_LOSS_SHARE
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Stats, Step, StepTimes
from paceline.speculative.tree import EMPTY, DraftTree, chain
from stage import Prompter, asking, stage

CURVE = {1: 1.0, 64: 1.1}
LONG = [1] * 500


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_the_first_draft_of_a_process_is_short_and_grows_with_what_was_accepted(right: float) -> None:
    copying = Prompter("copying", lambda at: right, score=0.99, length=31)
    play = stage(CURVE, [copying], 200)
    drafted = [len(step.tree) for _, step in play.steps()]
    assert drafted[:5] == ([4, 8, 16, 31, 31] if right else drafted[:5])
    assert drafted[0] == FIRST_DRAFT_TOKENS
    assert right or max(drafted) <= FIRST_DRAFT_TOKENS
    again = stage(CURVE, [copying], 200, policy=play.policy)
    assert next(len(step.tree) for _, step in again.steps()) in (
        (31,) if right else range(FIRST_DRAFT_TOKENS + 1)
    )
    play.policy.forget()
    assert next(iter(play.policy.budget(asking(1)))).depth == FIRST_DRAFT_TOKENS


def a_rate(seconds_a_token: float) -> GoodputPolicy:
    draft = PassCosts({MIN_CONTEXT_BUCKET: {n: seconds_a_token * n for n in (1, 2, 4, 8, 64, 512)}})
    return GoodputPolicy(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: CURVE}), draft), clock=lambda: 0.0)


def first_call(rate: GoodputPolicy, behind: int, steps: int = 200) -> int | None:
    """Return the step at which a drafter with `behind` pending tokens is called."""
    requests = asking(1)
    for step in range(steps):
        (budget,) = rate.budget(requests)
        if budget.should_call("model", lambda: EMPTY, behind):
            return step
    return None


def test_a_drafter_reads_a_text_once_calls_would_have_saved_what_that_takes() -> None:
    """A call is initially expected to save one token of a second."""
    assert first_call(a_rate(0.01), 8) == 0
    assert first_call(a_rate(0.01), 90) == 0  # 0.9 s
    assert first_call(a_rate(0.01), 500) == 4  # 5 s, made up for with the fifth
    assert first_call(a_rate(0.1), 500) == 49
    assert first_call(a_rate(0.1), 500, steps=20) is None  # a short answer does not pay for it


def test_without_a_known_cost_it_reads_at_once() -> None:
    assert (
        first_call(
            GoodputPolicy(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: CURVE})), clock=lambda: 0.0), 500
        )
        == 0
    )


def test_what_reading_took_is_not_taken_for_what_a_call_takes() -> None:
    now = 0.0
    rate = a_rate(0.01)
    rate._drafters.clock = lambda: now
    requests = asking(1)
    (budget,) = rate.budget(requests)
    assert budget.should_call("model", lambda: EMPTY, 90)
    now = 0.9
    rate.select(requests, [budget], [chain([1], "model", [0.9])])
    assert (rate._drafters.values["model"].seconds, rate._drafters.values["model"].calls) == (0.0, 0)
    assert rate.ledger(requests[0]).lost_seconds == pytest.approx(0.9)  # but it is lost


def test_what_a_request_may_lose_grows_with_the_time_of_its_prompt() -> None:
    for prompt, braked in ((0.0, True), (100.0, False)):
        rate, (request,) = a_rate(0.01), asking(1)
        request.stats = Stats(prefill_seconds=prompt)
        track = rate.ledger(request)
        track.lost_seconds = FREE_PASSES + MAX_LOSS_SHARE * 50.0
        (budget,) = rate.budget([request])
        assert budget.ledger.is_limited is braked  # type: ignore[attr-defined]


def test_the_end_of_a_prompt_in_the_first_pass_is_no_loss_of_the_draft_beside_it() -> None:
    """Only the one rejected row is lost."""
    rate, requests, tree = a_rate(0.01), asking(1), chain([1], "x", [0.8])
    rate.costs = DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: {n: float(n) for n in range(1, 200)}}))
    requests[0].session.pending_tokens = 30
    rate.budget(requests)
    step = Step((5,), ("target",), (), {}, {}, None, StepTimes(forward=32.0), tree, batch_tokens=32)
    rate.update(requests, [step])
    assert rate.ledger(requests[0]).lost_seconds == pytest.approx(1.0)
    assert rate.ledger(requests[0]).plain_seconds == pytest.approx(1.0)
    assert rate.costs.target.seconds(1, MIN_CONTEXT_BUCKET) == 1.0


class Watched(ModelDrafter):
    """A draft model that records its pending tokens."""

    read: list[int]

    def propose(self, batch: Sequence[tuple[object, Budget]]) -> list[DraftTree]:
        self.read += [memory.pending_prefill() for memory, _ in batch]  # type: ignore[attr-defined]
        return super().propose(batch)  # type: ignore[arg-type]


def test_the_loop_tells_how_far_behind_a_draft_model_is() -> None:
    target, rate = ToyTarget(6, seed=3), a_rate(0.01)
    small = Watched(ToyTarget(6, seed=3, noise=0.2), 6)
    small.read = []
    request = start_request(
        target, PortfolioDrafter([small]), GenerationRequest(prompt=[n % 6 for n in LONG], max_tokens=40)
    )
    for _ in decode(target, PortfolioDrafter([small]), rate, [request], lambda: 0.0):
        if small.read:
            break
    assert small.read[0] == len(LONG) - 1 + request.n_tokens - 1 or small.read[0] >= len(LONG) - 1
    request.close()
